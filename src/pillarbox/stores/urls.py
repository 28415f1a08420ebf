"""Store URLs: one line that says which store, where, and how.

    sqlite:///relative.db   sqlite:////absolute.db   postgresql://user:${PASSWORD}@host:5432/db?sslmode=verify-full
    mysql://user:${PASSWORD}@host:3306/db?ssl_ca=%2Fetc%2Fca.pem   memory://

A driver can be named, as in postgresql+psycopg://. No driver is imported to read one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.postgres.drivers import DriverName
from pillarbox.stores.url_secrets import expanded, redacted

__all__ = ["StoreUrl", "check_file", "known_schemes", "store_url"]

_KEEP: Final = ("full", "no-payload", "off")
_OPTIONS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = MappingProxyType(
    {
        "memory": {"keep": _KEEP},
        "mysql": {"keep": _KEEP},
        "postgresql": {"keep": _KEEP, "pooler": ("none", "transaction")},
        "sqlite": {"keep": _KEEP, "synchronous": ("full", "normal")},
    }
)
"""What each of our own stores can be told, and the values it takes."""

_FOR_THE_DRIVER: Final = frozenset(
    {
        "application_name", "dbname", "host", "options", "passfile", "password", "port", "search_path", "sslcert",
        "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "ssl_max_protocol_version",
        "ssl_min_protocol_version", "target_session_attrs", "user",
    }
)  # fmt: skip
"""Connection parameters of PostgreSQL that go to the driver as they are."""

_FOR_PYMYSQL: Final = frozenset({"ssl", "ssl_ca", "ssl_cert", "ssl_key", "unix_socket"})
_SSL: Final = ("off", "on", "unverified")

_ALIASES: Final = MappingProxyType({"postgres": "postgresql", "mariadb": "mysql"})
_DRIVERS: Final[Mapping[str, DriverName]] = MappingProxyType(
    {"asyncpg": "asyncpg", "psycopg": "psycopg", "psycopg_async": "psycopg"}
)
"""Those of SQLAlchemy's names that say which driver the store should use; others say nothing to it."""
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)(?:\+(?P<driver>[A-Za-z0-9_.-]+))?://(?P<rest>.*)", re.DOTALL
)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.%-]*)(:\d{1,5})?")
_OPTION: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,40})=(?P<value>[^=]*)")


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A store URL that was understood. Shown, it is `redacted`; `dsn` alone holds the secrets."""

    scheme: str
    dsn: str
    """What a driver connects with: the URL without our own options."""
    redacted: str
    path: str = ""
    """The file of an SQLite store; empty when none was named."""
    options: Mapping[str, str] = {}
    driver: DriverName | None = None
    """The driver that a PostgreSQL URL asks for, as in `postgresql+psycopg://`."""

    def __repr__(self) -> str:
        return f"StoreUrl({self.redacted!r})"

    def __str__(self) -> str:
        return self.redacted


def store_url(text: str, *, environ: Mapping[str, str] = os.environ) -> StoreUrl:
    """Read a store URL, or say in one sentence what is wrong with it, without repeating its secrets."""
    whole = expanded(text.strip(), environ)
    match = _URL.fullmatch(whole)
    if match is None:
        raise ConfigError(_no_scheme(whole))
    scheme = _ALIASES.get(match["scheme"].lower(), match["scheme"].lower())
    if scheme not in known_schemes():
        raise ConfigError(
            f"No installed store is called {scheme!r}; store URLs begin with {_listed(known_schemes(), after='://')}."
        )
    if "#" in match["rest"]:
        raise ConfigError("The store URL has a bare '#'; write it as %23.")
    place, _, query = match["rest"].partition("?")
    url = _READERS.get(scheme, _read_other)(scheme, place, query)
    return msgspec.structs.replace(url, driver=_DRIVERS.get((match["driver"] or "").lower()))


def check_file(url: StoreUrl, names: Names) -> None:
    """Whether an SQLite URL can be opened as it stands: it names a file, and asks for no schema."""
    if names.schema is not None:
        raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")
    if not url.path:
        raise ConfigError("The SQLite URL names no file: write sqlite:///relative.db or sqlite:////absolute.db.")


def known_schemes() -> Sequence[str]:
    """Our own stores, and those that other packages bring under the entry point group `pillarbox.stores`."""
    return sorted({*_OPTIONS, *entry_points(group="pillarbox.stores").names})


def _read_sqlite(scheme: str, place: str, query: str) -> StoreUrl:
    if place and not place.startswith("/"):
        raise ConfigError(
            "The SQLite URL needs three slashes before a relative path and four before an absolute one: "
            f"write {_as_file(place)}."
        )
    path = unquote(place[1:])
    if path == ":memory:":
        raise ConfigError("An SQLite store in memory would forget its messages; for tests write memory://.")
    url = f"{scheme}://{place}"
    return StoreUrl(scheme=scheme, dsn=url, redacted=url, path=path, options=_options(scheme, _pairs(query)))


def _read_postgresql(scheme: str, place: str, query: str) -> StoreUrl:
    authority, slash, database = place.partition("/")
    login, at, hosts = authority.rpartition("@")
    if "@" in database + query or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ConfigError(
            "The PostgreSQL URL cannot be read: write postgresql://user@host:5432/database, a password after the user "
            "and a colon, and special characters in both and in options as %XX."
        )
    pairs = _pairs(query)
    ours = {name: value for name, value in pairs.items() if name not in _FOR_THE_DRIVER}
    theirs = "&".join(f"{name}={value}" for name, value in pairs.items() if name in _FOR_THE_DRIVER)
    dsn = f"{scheme}://{login}{at}{hosts}{slash}{database}" + (f"?{theirs}" if theirs else "")
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redacted(dsn), options=_options(scheme, ours))


def _read_mysql(scheme: str, place: str, query: str) -> StoreUrl:
    authority, _, database = place.partition("/")
    login, at, host = authority.rpartition("@")
    if "@" in database + query or not database or not _HOST.fullmatch(host):
        raise ConfigError(
            "The MySQL URL cannot be read: write mysql://user@host:3306/database, a password after the user and a "
            "colon, and special characters in both and in options as %XX."
        )
    pairs = _pairs(query)
    _check_ssl(pairs)
    ours = {name: value for name, value in pairs.items() if name not in _FOR_PYMYSQL}
    theirs = "&".join(f"{name}={value}" for name, value in pairs.items() if name in _FOR_PYMYSQL)
    dsn = f"{scheme}://{login}{at}{host}/{database}" + (f"?{theirs}" if theirs else "")
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redacted(dsn), options=_options(scheme, ours))


def _check_ssl(pairs: Mapping[str, str]) -> None:
    if pairs.get("ssl", "off") not in _SSL:
        raise ConfigError(f"The option ssl of a mysql store is one of {_listed(_SSL)}.")
    if pairs.get("ssl") == "off" and {"ssl_ca", "ssl_cert"} & pairs.keys():
        raise ConfigError("The store URL says ssl=off and names certificates; leave one of them out.")


def _read_memory(scheme: str, place: str, query: str) -> StoreUrl:
    if place:
        raise ConfigError("A memory store has no place: write memory:// and nothing after it but options.")
    return StoreUrl(scheme=scheme, dsn="memory://", redacted="memory://", options=_options(scheme, _pairs(query)))


def _read_other(scheme: str, place: str, query: str) -> StoreUrl:
    """Of a store that another package brings: it knows its own options."""
    dsn = f"{scheme}://{place}" + (f"?{query}" if query else "")
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redacted(dsn), options=_pairs(query))


_READERS: Final = MappingProxyType(
    {"memory": _read_memory, "mysql": _read_mysql, "postgresql": _read_postgresql, "sqlite": _read_sqlite}
)


def _pairs(query: str) -> Mapping[str, str]:
    """Options as they are written, still percent-encoded."""
    pairs: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        match = _OPTION.fullmatch(pair)
        if match is None:
            raise ConfigError("The store URL has something after its '?' that is not name=value.")
        if match["name"] in pairs:
            raise ConfigError(f"The store URL sets the option {match['name']} twice; leave one.")
        pairs[match["name"]] = match["value"]
    return pairs


def _options(scheme: str, pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Our own options, each known and with a value it takes."""
    known = _OPTIONS[scheme]
    for name, value in pairs.items():
        if name not in known:
            raise ConfigError(f"A {scheme} store has no option {name!r}; it has {_listed(sorted(known))}.")
        if value not in known[name]:
            raise ConfigError(f"The option {name} of a {scheme} store is one of {_listed(known[name])}.")
    return MappingProxyType(dict(pairs))


def _no_scheme(text: str) -> str:
    return f"The store is given as a URL: write {_as_file(text)} or postgresql://user@host/database."


def _as_file(text: str) -> str:
    """What may have been meant. Repeated only if it can be nothing but a path."""
    return f"sqlite:///{text}" if re.fullmatch(r"[\w./-]+", text) else "sqlite:///path/to/file.db"


def _listed(words: Sequence[str], *, after: str = "") -> str:
    marked = [f"{word}{after}" for word in words]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} or {marked[-1]}"
