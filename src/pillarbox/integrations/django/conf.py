"""The setting PILLARBOX: `PILLARBOX = {"source": "/shop", "routes": "broker"}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from pillarbox.errors import ConfigError
from pillarbox.message import Names

__all__ = [
    "DATABASE_KEYS",
    "KEYS",
    "build_store_url",
    "get_database",
    "get_names",
    "get_table",
    "list_databases",
    "read_setting",
]

DATABASE_KEYS: Final = frozenset({"using", "databases"})
KEYS: Final = DATABASE_KEYS | {"outbox", "source", "routes", "schema", "prefix", "max_payload", "serialize_keys"}
"""The keys of PILLARBOX. `outbox` names an Outbox of the project; the others that are not about databases build one."""

_POSTGRES_OPTIONS: Final = (
    "options", "passfile", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs",
)  # fmt: skip


def read_setting() -> Mapping[str, Any]:
    """Return PILLARBOX, empty if it is not set."""
    setting: Mapping[str, Any] = getattr(settings, "PILLARBOX", {})
    return setting


def get_names() -> Names:
    """Return the names of the tables."""
    setting = read_setting()
    return Names(setting.get("schema"), setting.get("prefix", "pillarbox_"))


def get_table(name: str) -> str:
    """Return a table or view as the `db_table` of a Django model."""
    try:
        names = get_names()
    except ConfigError:
        names = Names()  # `manage.py check` reports it; it must be able to load the models.
    return names.bare(name) if names.schema is None else names.table(name, quote=_find_quote())


def _find_quote() -> str:
    # From the settings: models are loaded before there are connections.
    engine = settings.DATABASES.get(get_database(), {}).get("ENGINE", "")
    return "`" if engine.endswith(".mysql") else '"'


def get_database() -> str:
    """Return the alias of the database that has the tables, unless a call names another."""
    return str(read_setting().get("using", DEFAULT_DB_ALIAS))


def list_databases() -> Sequence[str]:
    """List the databases whose messages the admin shows: the one that is used, and others that PILLARBOX lists."""
    return list(dict.fromkeys([get_database(), *read_setting().get("databases", ())]))


def build_store_url(using: str | None = None) -> str:
    """Build the store URL of a Django database, password included: for an environment, never for a log."""
    connection = connections[using or get_database()]
    if connection.vendor == "sqlite":
        return _build_sqlite_url(str(connection.settings_dict["NAME"]))
    if connection.vendor == "postgresql":
        return _build_postgres_url(connection.settings_dict)
    if connection.vendor == "mysql":
        return _build_mysql_url(connection.settings_dict)
    raise ConfigError(
        f"Django's {connection.vendor} is not a store that Pillarbox has: use PostgreSQL, SQLite, MariaDB or MySQL."
    )


def _build_sqlite_url(name: str) -> str:
    if name.startswith((":memory:", "file:")):
        raise ConfigError(
            "Django's SQLite database is in memory or named by a URI, so that no other connection finds it: give it a "
            "file as NAME, and in tests as TEST NAME too."
        )
    return f"sqlite:///{quote(name)}"


def _build_postgres_url(database: Mapping[str, Any]) -> str:
    django_options = database.get("OPTIONS", {})
    if not database["NAME"]:
        raise ConfigError("Django's PostgreSQL database is named by a service file: give it a NAME in DATABASES too.")
    options = {name: django_options[name] for name in _POSTGRES_OPTIONS if name in django_options}
    host = database["HOST"] or ""
    if host.startswith("/"):
        options |= {"host": host} | ({"port": database["PORT"]} if database["PORT"] else {})
    return _build_server_url("postgresql", database, options)


def _build_mysql_url(database: Mapping[str, Any]) -> str:
    django_options, host = database.get("OPTIONS", {}), database["HOST"] or ""
    if not database["NAME"]:
        raise ConfigError("Django's MySQL database is named by an option file: give it a NAME in DATABASES too.")
    socket = host if host.startswith("/") else django_options.get("unix_socket")
    files = {
        f"ssl_{name}": path for name, path in (django_options.get("ssl") or {}).items() if name in ("ca", "cert", "key")
    }
    mode = _MYSQL_SSL_MODES.get(str(django_options.get("ssl_mode", "")).upper())
    ssl = {"ssl": mode} if mode is not None and not files else {}
    return _build_server_url("mysql", database, ({"unix_socket": socket} if socket else {}) | files | ssl)


_MYSQL_SSL_MODES: Final = MappingProxyType(
    {
        "DISABLED": "off", "PREFERRED": "unverified", "REQUIRED": "unverified", "VERIFY_CA": "on",
        "VERIFY_IDENTITY": "on",
    }
)  # fmt: skip
"""mysqlclient's option ssl_mode, in the words of a store URL."""


def _build_server_url(scheme: str, database: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    # A HOST that is a path is a socket, which is among the options.
    is_socket = str(database["HOST"] or "").startswith("/")
    port = f":{database['PORT']}" if database["PORT"] else ""
    address = "" if is_socket else f"{database['HOST'] or ''}{port}"
    password = f":{quote(database['PASSWORD'], safe='')}" if database["PASSWORD"] else ""
    login = f"{quote(database['USER'], safe='')}{password}@" if database["USER"] else ""
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
    return f"{scheme}://{login}{address}/{quote(database['NAME'], safe='')}" + (f"?{query}" if query else "")
