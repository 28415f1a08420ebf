"""What the Django settings say: `PILLARBOX = {"source": "/shop", "routes": "broker"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from pillarbox.errors import ConfigError
from pillarbox.names import Names

__all__ = ["KNOWN", "alias", "given", "names", "store_url"]

KNOWN: Final = frozenset({"outbox", "source", "routes", "schema", "prefix", "using", "max_payload", "serialize_keys"})
"""The keys of PILLARBOX. `outbox` names an Outbox of your own; the others make one."""


def given() -> Mapping[str, Any]:
    """PILLARBOX, as it stands."""
    found: Mapping[str, Any] = getattr(settings, "PILLARBOX", {})
    return found


def names() -> Names:
    """Where the tables are."""
    return Names(given().get("schema"), given().get("prefix", "pillarbox_"))


def alias() -> str:
    """The database that has the tables, unless a call says another."""
    return str(given().get("using", DEFAULT_DB_ALIAS))


def store_url(using: str | None = None) -> str:
    """The store URL of a Django database, password included: for an environment, never for a log."""
    connection = connections[using or alias()]
    settings_of = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings_of['NAME']}"
    if connection.vendor != "postgresql":
        raise ConfigError(f"Django's {connection.vendor} is not a store that Pillarbox has: use PostgreSQL or SQLite.")
    user = quote(settings_of["USER"] or "", safe="")
    password = f":{quote(settings_of['PASSWORD'], safe='')}" if settings_of["PASSWORD"] else ""
    port = f":{settings_of['PORT']}" if settings_of["PORT"] else ""
    host = settings_of["HOST"] or "localhost"
    options = settings_of.get("OPTIONS", {})
    wanted = "&".join(f"{name}={quote(str(options[name]))}" for name in ("sslmode", "sslrootcert") if name in options)
    at = f"{user}{password}@" if user else ""
    return f"postgresql://{at}{host}{port}/{quote(settings_of['NAME'])}" + (f"?{wanted}" if wanted else "")
