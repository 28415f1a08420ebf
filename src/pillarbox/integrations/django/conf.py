"""What the Django settings say: `PILLARBOX = {"source": "/shop", "routes": "broker"}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from pillarbox.errors import ConfigError
from pillarbox.names import Names

__all__ = ["ABOUT_DATABASES", "KNOWN", "alias", "databases", "given", "names", "store_url", "table"]

ABOUT_DATABASES: Final = frozenset({"using", "databases"})
KNOWN: Final = ABOUT_DATABASES | {"outbox", "source", "routes", "schema", "prefix", "max_payload", "serialize_keys"}
"""The keys of PILLARBOX. `outbox` names an Outbox of your own; those that are not about databases make one."""

_FOR_THE_DRIVER: Final = (
    "options", "passfile", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs",
)  # fmt: skip


def given() -> Mapping[str, Any]:
    """PILLARBOX, as it stands."""
    found: Mapping[str, Any] = getattr(settings, "PILLARBOX", {})
    return found


def names() -> Names:
    """Where the tables are."""
    return Names(given().get("schema"), given().get("prefix", "pillarbox_"))


def table(name: str) -> str:
    """A table or view as Django's models name it. Names that cannot be used are told by `manage.py check`."""
    try:
        known = names()
    except ConfigError:
        known = Names()
    return known.bare(name) if known.schema is None else known.table(name, quote=_quote())


def _quote() -> str:
    """What Django puts around names of the database. Asked of the settings: models are made before connections."""
    engine = settings.DATABASES.get(alias(), {}).get("ENGINE", "")
    return "`" if engine.endswith(".mysql") else '"'


def alias() -> str:
    """The database that has the tables, unless a call says another."""
    return str(given().get("using", DEFAULT_DB_ALIAS))


def databases() -> Sequence[str]:
    """The databases whose messages the admin shows: the one that is used, and others that PILLARBOX lists."""
    return list(dict.fromkeys([alias(), *given().get("databases", ())]))


def store_url(using: str | None = None) -> str:
    """The store URL of a Django database, password included: for an environment, never for a log."""
    connection = connections[using or alias()]
    if connection.vendor == "sqlite":
        return _sqlite_url(str(connection.settings_dict["NAME"]))
    if connection.vendor == "postgresql":
        return _postgres_url(connection.settings_dict)
    if connection.vendor == "mysql":
        return _mysql_url(connection.settings_dict)
    raise ConfigError(
        f"Django's {connection.vendor} is not a store that Pillarbox has: use PostgreSQL, SQLite, MariaDB or MySQL."
    )


def _sqlite_url(name: str) -> str:
    if name.startswith((":memory:", "file:")):
        raise ConfigError(
            "Django's SQLite database is in memory or named by a URI, so that no other connection finds it: give it a "
            "file as NAME, and in tests as TEST NAME too."
        )
    return f"sqlite:///{quote(name)}"


def _postgres_url(database: Mapping[str, Any]) -> str:
    given = database.get("OPTIONS", {})
    if not database["NAME"]:
        raise ConfigError("Django's PostgreSQL database is named by a service file: give it a NAME in DATABASES too.")
    wanted = {name: given[name] for name in _FOR_THE_DRIVER if name in given}
    host = database["HOST"] or ""
    if host.startswith("/"):
        wanted |= {"host": host} | ({"port": database["PORT"]} if database["PORT"] else {})
    return _server_url("postgresql", database, wanted)


def _mysql_url(database: Mapping[str, Any]) -> str:
    given, host = database.get("OPTIONS", {}), database["HOST"] or ""
    if not database["NAME"]:
        raise ConfigError("Django's MySQL database is named by an option file: give it a NAME in DATABASES too.")
    socket = host if host.startswith("/") else given.get("unix_socket")
    files = {f"ssl_{name}": path for name, path in (given.get("ssl") or {}).items() if name in ("ca", "cert", "key")}
    return _server_url("mysql", database, ({"unix_socket": socket} if socket else {}) | files)


def _server_url(scheme: str, database: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """A HOST that is a path is a socket, which is among the options."""
    is_socket = str(database["HOST"] or "").startswith("/")
    port = f":{database['PORT']}" if database["PORT"] else ""
    place = "" if is_socket else f"{database['HOST'] or ''}{port}"
    password = f":{quote(database['PASSWORD'], safe='')}" if database["PASSWORD"] else ""
    login = f"{quote(database['USER'], safe='')}{password}@" if database["USER"] else ""
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
    return f"{scheme}://{login}{place}/{quote(database['NAME'], safe='')}" + (f"?{query}" if query else "")
