"""Which store connections must prove themselves: decided from the URL and the environment alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.hosts import is_local_host
from pillarbox.stores.tls import (
    check_certificate_files,
    describe_unverified,
    is_certificate_error,
    secure_mysql_url,
    secure_postgres_url,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without PostgreSQL's own files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "host",
    [
        "", "localhost", "LOCALHOST", "localhost.", "db.localhost", "ip6-localhost", "ip6-loopback", "127.0.0.1",
        "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1", "/run/postgresql", "@abstract",
    ],
)  # fmt: skip
def test_loopback_and_unix_sockets_are_this_machine(host: str) -> None:
    assert is_local_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "db", "localhost.example", "notlocalhost", "localhost.evil.example", "127.0.0.1.evil.example", "127.1",
        "2130706433", "0x7f.1", "10.0.0.1", "192.168.1.1", "::", "::2", "fe80::1%lo", "169.254.1.1",
        "localhost..", "127.0.0.1 ", " localhost", "[localhost", "xn--localhost", "127.0.0.1@evil",
    ],
)  # fmt: skip
def test_everything_else_is_another_machine(host: str) -> None:
    assert not is_local_host(host)


REMOTE = [
    "postgresql://u:p@db/shop",
    "postgresql://db.example:5432/shop",
    "postgresql://localhost,db/shop",
    "postgresql://localhost:1,10.0.0.1:2/shop",
    "postgresql://localhost%2Cdb/shop",
    "postgresql://localhost/shop?host=db",
    "postgresql:///shop?host=db",
    "postgresql:///shop?host=%64%62",
    "postgresql:///shop?host=/run/postgresql,db",
    "postgresql://u:localhost@db/shop",
    "postgresql://u@localhost@db/shop",
    "postgresql://[2001:db8::1]:5432/shop",
    "postgresql://db/shop?application_name=localhost",
    "postgresql://localhost/shop?hostaddr=10.0.0.1",
    "postgresql://localhost/shop?service=shop",
]


@pytest.mark.parametrize("url", REMOTE)
def test_a_postgresql_server_elsewhere_must_prove_itself(url: str) -> None:
    secured = secure_postgres_url(url, environ={})

    assert "sslmode=verify-full" in secured
    assert "sslrootcert=system" in secured
    assert secured.startswith(url)
    assert secure_postgres_url(secured, environ={}) == secured
    assert describe_unverified(url, environ={}) is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@localhost:5432/shop",
        "postgresql://127.0.0.1/shop",
        "postgresql://[::1]:5432/shop",
        "postgresql:///shop",
        "postgresql://",
        "postgresql://u@/shop?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/shop",
        "postgresql:///shop?host=::1",
    ],
)
def test_a_postgresql_server_here_need_not(url: str) -> None:
    assert secure_postgres_url(url, environ={}) == url
    assert describe_unverified(url, environ={}) is None


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require"])
def test_another_choice_stays_and_is_described(mode: str) -> None:
    url = f"postgresql://db/shop?sslmode={mode}"

    assert secure_postgres_url(url, environ={}) == url
    assert describe_unverified(url, environ={}) == f"sslmode={mode}"
    assert describe_unverified(f"postgresql://localhost/shop?sslmode={mode}", environ={}) is None
    by_environment = {"PGSSLMODE": mode}
    assert secure_postgres_url("postgresql://db/shop", environ=by_environment) == "postgresql://db/shop"
    assert describe_unverified("postgresql://db/shop", environ=by_environment) == f"PGSSLMODE={mode}"


@pytest.mark.parametrize(
    "environ", [{"PGHOST": "db"}, {"PGHOST": "localhost,db"}, {"PGHOSTADDR": "10.0.0.1"}, {"PGSERVICE": "shop"}]
)
def test_the_environment_can_lead_to_another_machine(environ: dict[str, str]) -> None:
    assert "sslmode=verify-full" in secure_postgres_url("postgresql:///shop", environ=environ)
    assert secure_postgres_url("postgresql:///shop", environ={"PGHOST": "/run"}) == "postgresql:///shop"


def test_authorities_that_are_named_stay(home: Path) -> None:
    url = "postgresql://db/shop?sslrootcert=/ca.pem"
    assert secure_postgres_url(url, environ={}) == f"{url}&sslmode=verify-full"
    assert "system" not in secure_postgres_url("postgresql://db/shop", environ={"PGSSLROOTCERT": "/ca.pem"})
    assert secure_postgres_url("postgresql://db/shop?sslmode=verify-ca", environ={}).endswith("verify-ca")
    (home / ".postgresql").mkdir()
    (home / ".postgresql" / "root.crt").touch()
    assert "system" not in secure_postgres_url("postgresql://db/shop", environ={})


def test_mysql_servers_elsewhere_must_prove_themselves() -> None:
    for url in ("mysql://u:p@db/shop", "mysql://db:3307/shop?ssl_ca=/ca.pem", "mysql://10.0.0.1/shop"):
        assert "ssl=on" in secure_mysql_url(url)
        assert describe_unverified(url) is None
    for url in (
        "mysql://localhost/shop",
        "mysql://[::1]:1/shop",
        "mysql://db/shop?unix_socket=/run/s",
        "mysql:///shop",
    ):
        assert secure_mysql_url(url) == url
        assert describe_unverified(url) is None
    for mode in ("off", "unverified"):
        url = f"mysql://db/shop?ssl={mode}"
        assert secure_mysql_url(url) == url
        assert describe_unverified(url) == f"ssl={mode}"


def test_a_store_is_no_conninfo() -> None:
    with pytest.raises(ConfigError, match="given as a URL") as raised:
        secure_postgres_url("host=db password=hunter2", environ={})
    assert "hunter2" not in str(raised.value)


def test_a_host_cannot_hide_before_a_fragment() -> None:
    for secure in (secure_postgres_url, secure_mysql_url):
        with pytest.raises(ConfigError, match="given as a URL"):
            secure("mysql://db#@localhost/shop")


@pytest.mark.parametrize(
    "text", ["SSL connection has been closed unexpectedly", "SSL SYSCALL error: EOF detected", "connection refused"]
)
def test_a_connection_that_breaks_is_no_bad_certificate(text: str) -> None:
    assert not is_certificate_error(OSError(text), text)


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert", "sslkey"])
def test_a_certificate_that_is_not_there_is_named(option: str, tmp_path: Path) -> None:
    missing = tmp_path / "none.crt"
    with pytest.raises(StoreUnavailable, match=f"The file .*none.crt of the option {option} in the store URL cannot"):
        check_certificate_files(f"postgresql://db.example/shop?{option}={missing}")
    missing.write_text("")
    check_certificate_files(f"postgresql://db.example/shop?{option}={missing}")
    check_certificate_files("postgresql://db.example/shop?sslrootcert=system")
