"""Store URLs: what is understood, what is refused, and that secrets stay hidden."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import ConfigError
from pillarbox.redaction import redact_url
from pillarbox.stores.urls import StoreUrl, parse_store_url


def read(text: str, **environ: str) -> StoreUrl:
    return parse_store_url(text, environ=environ)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:///a/b.db", "a/b.db"),
        ("sqlite:////var/lib/abs.db", "/var/lib/abs.db"),
        ("sqlite:///with%20space%23.db", "with space#.db"),
        ("sqlite+aiosqlite:///relative.db", "relative.db"),
        ("sqlite://", ""),
        ("  sqlite:///relative.db\n", "relative.db"),
    ],
)
def test_sqlite_urls_name_a_file(text: str, path: str) -> None:
    url = read(text)

    assert (url.scheme, url.path) == ("sqlite", path)


@pytest.mark.parametrize(
    ("text", "dsn"),
    [
        ("postgresql://u:p%40w@h:5432/db?sslmode=require", "postgresql://u:p%40w@h:5432/db?sslmode=require"),
        ("postgres://h/db", "postgresql://h/db"),
        ("postgresql+asyncpg://h/db", "postgresql://h/db"),
        ("POSTGRESQL://h/db", "postgresql://h/db"),
        ("postgresql://", "postgresql://"),
        ("postgresql://a:1,b:2/db?target_session_attrs=read-write", None),
        ("postgresql://[::1]:5432/db", None),
        ("postgresql:///db?host=/run/postgresql", None),
        ("postgresql://h/db?keep=off&sslmode=disable&pooler=transaction", "postgresql://h/db?sslmode=disable"),
    ],
)
def test_postgresql_urls_reach_the_driver_without_our_options(text: str, dsn: str | None) -> None:
    url = read(text)

    assert (url.scheme, url.dsn) == ("postgresql", dsn or text)


@pytest.mark.parametrize(
    ("scheme", "driver"),
    [
        ("postgresql", None),
        ("postgresql+asyncpg", "asyncpg"),
        ("postgres+psycopg", "psycopg"),
        ("postgresql+PSYCOPG_async", "psycopg"),
        ("postgresql+psycopg2", None),
    ],
)
def test_a_postgresql_url_may_name_its_driver(scheme: str, driver: str | None) -> None:
    url = read(f"{scheme}://u:canary@h/db?keep=off")

    assert (url.driver, url.dsn, url.redacted) == (driver, "postgresql://u:canary@h/db", "postgresql://u:***@h/db")


def test_store_options_are_kept_apart() -> None:
    assert read("postgresql://h/db?keep=no-payload&sslmode=require&pooler=transaction").options == {
        "keep": "no-payload",
        "pooler": "transaction",
    }
    assert read("sqlite:///x.db?synchronous=normal").options == {"synchronous": "normal"}
    assert read("memory://?keep=off").options == {"keep": "off"}
    mysql = read("mariadb://u:canary@h:3307/db?keep=off&ssl_ca=%2Fca.pem")
    assert (mysql.scheme, mysql.dsn) == ("mysql", "mysql://u:canary@h:3307/db?ssl_ca=%2Fca.pem")
    assert mysql.options == {"keep": "off"}
    assert "canary" not in mysql.redacted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("oracle://h/db", "mariadb://, memory://, mysql://, postgres://, postgresql:// or sqlite://"),
        ("mysql://h", "cannot be read: write mysql://user@host:3306/database"),
        ("mysql://h/db?ssl=maybe", "ssl of a mysql store is one of off, on or unverified"),
        ("mysql://h/db?ssl=off&ssl_ca=%2Fca.pem", "says ssl=off and names certificates"),
        ("mysql://h/db?pooler=transaction", "no option 'pooler'; it has keep, ssl"),
        ("shop.db", "write sqlite:///shop.db or postgresql://"),
        ("", "is given as a URL"),
        ("sqlite://shop.db", "three slashes .* write sqlite:///shop.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a#b.db", "%23"),
        ("memory://there", "has no place"),
        ("postgresql://h:port/db", "cannot be read"),
        ("postgresql://h/db?colour=red", "no option 'colour'; it has application_name, dbname, dialect, .* sslmode"),
        ("postgresql://h/db?sslmod=off", "no option 'sslmod'; the nearest known is sslmode"),
        ("postgresql://h/db?sslmode=maybe", "option sslmode of a postgresql store is one of disable, allow, prefer"),
        ("postgresql://h/db?target_session_attrs=x", "option target_session_attrs of a postgresql store is one of any"),
        ("mysql://h/db?ssl_c=x", "no option 'ssl_c'; the nearest known is ssl_ca"),
        ("sqlite:///x.db?synchronos=full", "no option 'synchronos'; the nearest known is synchronous"),
        ("memory://?kep=full", "no option 'kep'; the nearest known is keep"),
        ("postgresql://h:99999/db", "port 99999 in the store URL is not between 1 and 65535"),
        ("postgresql://a,b:0/db", "port 0 in the store URL"),
        ("postgresql:///db?host=h&port=70000", "port 70000 in the store URL"),
        ("mysql://a:3306,b:99999/db", "port 99999 in the store URL"),
        ("mysql://[::1]:65536/db", "port 65536 in the store URL"),
        ("postgresql://h/db?synchronous=normal", "no option 'synchronous'"),
        ("sqlite:///x.db?pooler=transaction", "no option 'pooler'; it has keep or synchronous"),
        ("sqlite:///x.db?synchronous=sometimes", "synchronous of a sqlite store is one of"),
        ("postgresql://h/db?keep=some", "keep of a postgresql store is one of full, no-payload or off"),
        ("postgresql://h/db?keep=off&keep=full", "option keep twice"),
        ("postgresql://h/db?keep", "not name=value"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)


def test_references_are_filled_from_the_environment_and_encoded_where_they_must_be() -> None:
    url = read("postgresql://app:${PW}@${HOST}/shop?sslpassword=${PW}", PW="p@ss/w:rd?#", HOST="db:5433")

    assert url.dsn == "postgresql://app:p%40ss%2Fw%3Ard%3F%23@db:5433/shop?sslpassword=p%40ss%2Fw%3Ard%3F%23"
    assert read("${URL}", URL="sqlite:///x.db").path == "x.db"
    assert read("sqlite:///${HOME}/x.db", HOME="/home/me").path == "/home/me/x.db"


def test_a_reference_to_nothing_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"refers to \$\{PW\}, but that environment variable is not set"):
        read("postgresql://app:${PW}@h/db")
    with pytest.raises(ConfigError, match="does not hold the name"):
        read("postgresql://app:${a b}@h/db")


def test_what_a_variable_holds_is_not_searched_for_references() -> None:
    assert read("postgresql://app:${PW}@h/db", PW="${OTHER}").dsn == "postgresql://app:%24%7BOTHER%7D@h/db"


def test_a_url_shows_itself_without_its_secrets() -> None:
    url = read("postgresql://app:canary@h:5432/shop?sslpassword=canary&sslmode=require")

    assert url.redacted == "postgresql://app:***@h:5432/shop?sslpassword=***&sslmode=require"
    assert str(url) == url.redacted
    assert repr(url) == f"StoreUrl({url.redacted!r})"
    assert "canary" not in f"{url} {url!r} {[url]}"


@pytest.mark.parametrize("option", ["password", "sslpassword", "api_key", "token", "client_secret", "AUTH"])
def test_options_that_are_not_known_to_be_harmless_are_hidden(option: str) -> None:
    shown = redact_url(f"x://h/db?mode=binary&{option}=canary&other=canary")
    assert shown == f"x://h/db?mode=binary&{option}=***&other=***"


@given(
    st.text("canry/@:?#%&=[]+ ", min_size=1), st.sampled_from(["postgresql", "postgres", "sqlite", "mysql", "memory"])
)
def test_no_password_shows_however_badly_it_was_written(noise: str, scheme: str) -> None:
    text = f"{scheme}://app:CANARY{noise}CANARY@127.0.0.1/shop"
    try:
        shown = repr(read(text))
    except ConfigError as error:
        shown = str(error)

    assert "CANARY" not in shown
    assert "CANARY" not in redact_url(text)


@given(st.text(min_size=1))
def test_any_password_survives_the_way_through_a_reference(password: str) -> None:
    url = read("postgresql://app:${PW}@h/db", PW=password)

    assert unquote(urlsplit(url.dsn).password or "") == password
