"""Store URLs: the store, its address and its options in one line.

    sqlite:///relative.db   sqlite:////absolute.db   postgresql://user:${PASSWORD}@host:5432/db?sslmode=verify-full
    postgresql://host/db?schema=acme   mysql://user:${PASSWORD}@host:3306/db?ssl_ca=%2Fetc%2Fca.pem   memory://

Several hosts of one cluster stand between commas: mysql://user@db-1,db-2,db-3/shop.
A driver can be named, as in postgresql+psycopg://. No driver is imported to read one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.redaction import expand_variables, redact_url
from pillarbox.stores.postgres.driver import DriverName

__all__ = ["StoreUrl", "check_sqlite_url", "choose_names", "list_schemes", "parse_store_url"]

_KEEP: Final = ("full", "no-payload", "off")
_OPTIONS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = MappingProxyType(
    {
        "memory": {"keep": _KEEP},
        "mysql": {"keep": _KEEP, "wakeups": ("on", "off")},
        "postgresql": {"keep": _KEEP, "pooler": ("none", "transaction"), "dialect": ("native", "portable")},
        "sqlite": {"keep": _KEEP, "synchronous": ("full", "normal")},
    }
)
"""The options of each built-in store, with the values it takes."""

_POSTGRES_PARAMETERS: Final = frozenset(
    {
        "application_name", "dbname", "host", "options", "passfile", "password", "port", "search_path", "sslcert",
        "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "ssl_max_protocol_version",
        "ssl_min_protocol_version", "target_session_attrs", "user",
    }
)  # fmt: skip
"""Connection parameters that go to the PostgreSQL driver as they are."""

_MYSQL_PARAMETERS: Final = frozenset({"ssl", "ssl_ca", "ssl_cert", "ssl_key", "unix_socket"})
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {"mysql": _MYSQL_PARAMETERS, "postgresql": _POSTGRES_PARAMETERS | {"schema"}}
)
_SSL_MODES: Final = ("off", "on", "unverified")
_CHOICES: Final = MappingProxyType(
    {
        "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    }
)
"""Values of parameters of PostgreSQL's drivers. What is wrong there they say in their own words, or not at all."""

_ALIASES: Final = MappingProxyType({"postgres": "postgresql", "mariadb": "mysql"})
_DRIVERS: Final[Mapping[str, DriverName]] = MappingProxyType(
    {"asyncpg": "asyncpg", "psycopg": "psycopg", "psycopg_async": "psycopg"}
)
"""SQLAlchemy's driver names that choose a driver of the store. Others are ignored."""
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)(?:\+(?P<driver>[A-Za-z0-9_.-]+))?://(?P<rest>.*)", re.DOTALL
)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.%-]*)(:\d{1,5})?")
_OPTION: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,40})=(?P<value>[^=]*)")


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed store URL. Its text is `redacted`; `dsn` alone holds the secrets."""

    scheme: str
    dsn: str
    """The URL for the driver: without our own options."""
    redacted: str
    path: str = ""
    """The file of an SQLite store; empty when none was named."""
    options: Mapping[str, str] = {}
    driver: DriverName | None = None
    """The driver that a PostgreSQL URL asks for, as in `postgresql+psycopg://`."""
    schema: str | None = None
    """The schema of the tables, where the URL names one: `postgresql:///shop?schema=acme`."""

    def __repr__(self) -> str:
        return f"StoreUrl({self.redacted!r})"

    def __str__(self) -> str:
        return self.redacted


def parse_store_url(text: str, *, environ: Mapping[str, str] = os.environ) -> StoreUrl:
    """Parse a store URL; `ConfigError` names what is wrong with it, without repeating its secrets."""
    expanded = expand_variables(text.strip(), environ)
    match = _URL.fullmatch(expanded)
    if match is None:
        raise ConfigError(
            f"The store is given as a URL: write {_suggest_sqlite(expanded)} or postgresql://user@host/database."
        )
    scheme = _ALIASES.get(match["scheme"].lower(), match["scheme"].lower())
    if scheme not in list_schemes():
        known = sorted({*list_schemes(), *_ALIASES})
        near = get_close_matches(scheme, known, n=1)
        nearest = f"; the nearest is {near[0]}://" if near else ""
        choices = _join_choices(known, after="://")
        raise ConfigError(f"No installed store is called {scheme!r}; store URLs begin with {choices}{nearest}.")
    if "#" in match["rest"]:
        raise ConfigError("The store URL has a bare '#'; write it as %23.")
    address, _, query = match["rest"].partition("?")
    url = _PARSERS.get(scheme, _parse_other)(scheme, address, query)
    return msgspec.structs.replace(url, driver=_DRIVERS.get((match["driver"] or "").lower()))


def format_address(url: str) -> str:
    """Return the URL of a store for people: without secrets, and nothing of one that cannot be parsed."""
    try:
        return str(parse_store_url(url, environ={}))
    except ConfigError:
        return "an address that cannot be shown"


def check_sqlite_url(url: StoreUrl, names: Names) -> None:
    """Raise `ConfigError` unless an SQLite URL can be opened: it names a file, and no schema is configured."""
    if names.schema is not None:
        raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")
    if not url.path:
        raise ConfigError("The SQLite URL names no file: write sqlite:///relative.db or sqlite:////absolute.db.")


def choose_names(url: StoreUrl, names: Names | None) -> Names:
    """Return the names of the tables: those given, with the schema that the URL names. `ConfigError` if they differ."""
    names = Names() if names is None else names
    if url.schema is None or url.schema == names.schema:
        return names
    if names.schema is not None:
        raise ConfigError(
            f"The store URL says schema={url.schema}, and the configuration says {names.schema}: leave one of them out."
        )
    return Names(url.schema, names.prefix)


def list_schemes() -> Sequence[str]:
    """List the built-in schemes, and those of other packages in the entry point group `pillarbox.stores`."""
    return sorted({*_OPTIONS, *entry_points(group="pillarbox.stores").names})


def _parse_sqlite(scheme: str, address: str, query: str) -> StoreUrl:
    if address and not address.startswith("/"):
        raise ConfigError(
            "The SQLite URL needs three slashes before a relative path and four before an absolute one: "
            f"write {_suggest_sqlite(address)}."
        )
    path = unquote(address[1:])
    if path == ":memory:":
        raise ConfigError("An SQLite store in memory would forget its messages; for tests write memory://.")
    url = f"{scheme}://{address}"
    return StoreUrl(
        scheme=scheme, dsn=url, redacted=url, path=path, options=_check_options(scheme, _parse_pairs(query))
    )


def _parse_postgresql(scheme: str, address: str, query: str) -> StoreUrl:
    authority, slash, database = address.partition("/")
    login, at, hosts = authority.rpartition("@")
    if "@" in database + query or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ConfigError(
            "The PostgreSQL URL cannot be read: write postgresql://user@host:5432/database, a password after the user "
            "and a colon, and special characters in both and in options as %XX."
        )
    pairs = dict(_parse_pairs(query))
    _check_ports([*hosts.split(","), *(f":{port}" for port in pairs.get("port", "").split(",") if port)])
    for name, choices in _CHOICES.items():
        if name in pairs and pairs[name] not in choices:
            raise ConfigError(f"The option {name} of a postgresql store is one of {_join_choices(choices)}.")
    schema = _take_schema(pairs)
    ours = {name: value for name, value in pairs.items() if name not in _POSTGRES_PARAMETERS}
    theirs = "&".join(f"{name}={value}" for name, value in pairs.items() if name in _POSTGRES_PARAMETERS)
    dsn = f"{scheme}://{login}{at}{hosts}{slash}{database}" + (f"?{theirs}" if theirs else "")
    redacted = redact_url(dsn) + _describe_schema(schema, has_query=bool(theirs))
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redacted, options=_check_options(scheme, ours), schema=schema)


def _take_schema(pairs: dict[str, str]) -> str | None:
    """Take the option schema out of the pairs; `ConfigError` unless it is the name of one."""
    return None if (schema := pairs.pop("schema", None)) is None else Names(unquote(schema)).schema


def _describe_schema(schema: str | None, *, has_query: bool) -> str:
    return "" if schema is None else f"{'&' if has_query else '?'}schema={schema}"


def _parse_mysql(scheme: str, address: str, query: str) -> StoreUrl:
    authority, _, database = address.partition("/")
    login, at, hosts = authority.rpartition("@")
    if "@" in database + query or not database or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ConfigError(
            "The MySQL URL cannot be read: write mysql://user@host:3306/database, a password after the user and a "
            "colon, and special characters in both and in options as %XX."
        )
    _check_ports(hosts.split(","))
    pairs = _parse_pairs(query)
    _check_ssl(pairs)
    ours = {name: value for name, value in pairs.items() if name not in _MYSQL_PARAMETERS}
    theirs = "&".join(f"{name}={value}" for name, value in pairs.items() if name in _MYSQL_PARAMETERS)
    dsn = f"{scheme}://{login}{at}{hosts}/{database}" + (f"?{theirs}" if theirs else "")
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redact_url(dsn), options=_check_options(scheme, ours))


def _check_ports(hosts: Sequence[str]) -> None:
    """Raise `ConfigError` for a port that no server can have."""
    for host in hosts:
        port = host.rpartition(":")[2] if not host.endswith("]") and ":" in host else ""
        if port and not (port.isdecimal() and 0 < int(port) < 65_536):
            raise ConfigError(f"The port {port} in the store URL is not between 1 and 65535: correct it.")


def _check_ssl(pairs: Mapping[str, str]) -> None:
    if pairs.get("ssl", "off") not in _SSL_MODES:
        raise ConfigError(f"The option ssl of a mysql store is one of {_join_choices(_SSL_MODES)}.")
    if pairs.get("ssl") == "off" and {"ssl_ca", "ssl_cert"} & pairs.keys():
        raise ConfigError("The store URL says ssl=off and names certificates; leave one of them out.")


def _parse_memory(scheme: str, address: str, query: str) -> StoreUrl:
    if address:
        raise ConfigError("A memory store has no place: write memory:// and nothing after it but options.")
    return StoreUrl(
        scheme=scheme, dsn="memory://", redacted="memory://", options=_check_options(scheme, _parse_pairs(query))
    )


def _parse_other(scheme: str, address: str, query: str) -> StoreUrl:
    """Parse the URL of another package's store, which knows its own options."""
    dsn = f"{scheme}://{address}" + (f"?{query}" if query else "")
    return StoreUrl(scheme=scheme, dsn=dsn, redacted=redact_url(dsn), options=_parse_pairs(query))


_PARSERS: Final = MappingProxyType(
    {"memory": _parse_memory, "mysql": _parse_mysql, "postgresql": _parse_postgresql, "sqlite": _parse_sqlite}
)


def _parse_pairs(query: str) -> Mapping[str, str]:
    """Split the options as they are written, still percent-encoded."""
    pairs: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        match = _OPTION.fullmatch(pair)
        if match is None:
            raise ConfigError("The store URL has something after its '?' that is not name=value.")
        if match["name"] in pairs:
            raise ConfigError(f"The store URL sets the option {match['name']} twice; leave one.")
        pairs[match["name"]] = match["value"]
    return pairs


def _check_options(scheme: str, pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Return our own options; `ConfigError` unless each is known and has a value it takes."""
    known = _OPTIONS[scheme]
    for name, value in pairs.items():
        if name not in known:
            raise ConfigError(f"A {scheme} store has no option {name!r}; {_suggest_option(scheme, name)}.")
        if value not in known[name]:
            raise ConfigError(f"The option {name} of a {scheme} store is one of {_join_choices(known[name])}.")
    return MappingProxyType(dict(pairs))


def _suggest_option(scheme: str, name: str) -> str:
    """Name the nearest option, also of those that go to the driver as they are, or list all of them."""
    known = sorted({*_OPTIONS[scheme], *_PARAMETERS.get(scheme, ())})
    if near := get_close_matches(name, known, n=1):
        return f"the nearest known is {near[0]}"
    return f"it has {_join_choices(known)}"


def _suggest_sqlite(text: str) -> str:
    """Suggest the URL of a file. The text is repeated only if it can be nothing but a path: it may hold a secret."""
    return f"sqlite:///{text}" if re.fullmatch(r"[\w./-]+", text) else "sqlite:///path/to/file.db"


def _join_choices(words: Sequence[str], *, after: str = "") -> str:
    choices = [f"{word}{after}" for word in words]
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
