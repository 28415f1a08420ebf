"""Stores and schemas from store URLs. A driver is imported only for the store that needs it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

from pillarbox.contracts.store import Store
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.catalog import Difference
from pillarbox.stores.lock_wait import Report, ignore_report
from pillarbox.stores.migrations import Migration, Plan
from pillarbox.stores.sharing import SharedConnections
from pillarbox.stores.urls import StoreUrl, check_sqlite_url, choose_names, parse_store_url

if TYPE_CHECKING:
    from pillarbox.stores.postgres.connection import Pooler
    from pillarbox.stores.postgres.dialect import PostgresDialect
    from pillarbox.stores.rules import Keep
    from pillarbox.stores.sqlite.connection import Synchronous

__all__ = ["Schema", "StoreFactory", "open_schema", "open_store"]

_CONNECTIONS: Final = 4
"""Enough for a relay to read, claim, settle and renew its lease at the same time."""


class StoreFactory(Protocol):
    """Builds a store. Another package registers one for its scheme under the entry point group `pillarbox.stores`."""

    def __call__(self, url: StoreUrl, *, names: Names) -> Store:
        """Build the store, not yet connected. `ConfigError` for options it does not know."""


def open_store(
    url: str | StoreUrl,
    *,
    names: Names | None = None,
    asks_only: bool = False,
    reads_only: bool = False,
    shared: SharedConnections | None = None,
) -> Store:
    """Build the store that a URL names, not yet connected: `open()` it. `MissingExtra` when its driver is missing.

    With `asks_only` a server store has one connection: enough for one query after the other, too few for a relay. With
    `reads_only` it opens on tables of a newer version that this release may read but not write. With `shared` it has
    no connection of its own: all stores of a database that were given the same share theirs.
    """
    store_url = parse_store_url(url) if isinstance(url, str) else url
    names = choose_names(store_url, names)
    connections = 1 if asks_only else _CONNECTIONS
    match store_url.scheme:
        case "postgresql":
            return _build_postgres(
                store_url, names=names, connections=connections, reads_only=reads_only, shared=shared
            )
        case "sqlite":
            return _build_sqlite(store_url, names=names, reads_only=reads_only, shared=shared)
        case "mysql":
            return _build_mariadb(store_url, names=names, connections=connections, reads_only=reads_only, shared=shared)
        case "memory":
            return _build_memory(store_url)
    return _load_factory(store_url.scheme)(store_url, names=names)


def _build_postgres(
    url: StoreUrl, *, names: Names, connections: int, reads_only: bool, shared: SharedConnections | None
) -> Store:
    from pillarbox.stores.postgres.store import PostgresStore

    keep = cast("Keep", url.options.get("keep", "full"))
    pooler = cast("Pooler", url.options.get("pooler", "none"))
    dialect = cast("PostgresDialect", url.options.get("dialect", "native"))
    return PostgresStore(
        url.dsn,
        schema=names.schema,
        prefix=names.prefix,
        keep=keep,
        pooler=pooler,
        driver=url.driver,
        connections=connections,
        reads_only=reads_only,
        dialect=dialect,
        shared=None if shared is None else shared.get_postgres(url),
    )


def _build_sqlite(url: StoreUrl, *, names: Names, reads_only: bool, shared: SharedConnections | None) -> Store:
    from pillarbox.stores.sqlite.store import SqliteStore

    check_sqlite_url(url, names)
    keep = cast("Keep", url.options.get("keep", "full"))
    synchronous = cast("Synchronous", url.options.get("synchronous", "full"))
    return SqliteStore(
        url.path,
        prefix=names.prefix,
        keep=keep,
        synchronous=synchronous,
        reads_only=reads_only,
        shared=None if shared is None else shared.get_sqlite(),
    )


def _build_mariadb(
    url: StoreUrl, *, names: Names, connections: int, reads_only: bool, shared: SharedConnections | None
) -> Store:
    from pillarbox.stores.mariadb.store import MariadbStore

    keep = cast("Keep", url.options.get("keep", "full"))
    if shared is not None:  # beside many others it has one to work with, and one for heartbeats
        connections = 1
    return MariadbStore(
        url.dsn,
        schema=names.schema,
        prefix=names.prefix,
        keep=keep,
        connections=connections,
        # A connection to watch each of many databases would be one too many: their relays poll.
        wakeups=shared is None and url.options.get("wakeups", "on") == "on",
        reads_only=reads_only,
    )


def _build_memory(url: StoreUrl) -> Store:
    from pillarbox.stores.memory import MemoryStore

    return MemoryStore(keep=cast("Keep", url.options.get("keep", "full")))


def _load_factory(scheme: str) -> StoreFactory:
    """Load the factory that another package registered for its scheme."""
    for entry in entry_points(group="pillarbox.stores", name=scheme):
        try:
            return cast("StoreFactory", entry.load())
        except ImportError as error:
            raise ConfigError(
                f"The store for {scheme}:// cannot be loaded ({error}); reinstall its package."
            ) from error
    raise ConfigError(f"No installed store is called {scheme!r}.")


class Schema(Protocol):
    """The tables of one store. Each call connects, runs one transaction where the database can, and disconnects.

    Any number of processes may call at once: they take turns, and the later ones find the work done.
    """

    async def version(self) -> int:
        """Return the version of the tables; 0 when there are none."""

    async def install(self) -> Plan:
        """Create the tables where there are none. `SchemaOutdated` or `SchemaNewer` where they do not fit."""

    async def upgrade(self, *, target: int | None = None) -> Plan:
        """Bring the tables to the target, by default the latest version; from nothing too."""

    async def downgrade(self, *, target: int) -> Plan:
        """Take the tables back to an older version; 0 removes everything, messages included."""

    async def change_lookups(self, *, wanted: bool) -> Sequence[str]:
        """Create the optional indexes for lookups, or drop them; return the names of those that changed.

        `ConfigError` where a store has none that are optional.
        """

    async def verify(self) -> Sequence[Difference]:
        """List how the tables differ from what their version should have. Changes nothing.

        `SchemaMissing`, `SchemaOutdated` or `SchemaNewer` when the version does not fit this release.
        """


def open_schema(
    url: str | StoreUrl,
    *,
    names: Names | None = None,
    migrations: Sequence[Migration] | None = None,
    report: Report = ignore_report,
) -> Schema:
    """Build the schema that a store URL points to. `migrations` are those of this release unless given.

    `report` takes a sentence for each step of a change, and for each wait.
    """
    url = parse_store_url(url) if isinstance(url, str) else url
    names = choose_names(url, names)
    match url.scheme:
        case "postgresql":
            from pillarbox.stores.postgres.schema import PostgresSchema

            return PostgresSchema(url, names=names, migrations=migrations, report=report)
        case "sqlite":
            from pillarbox.stores.sqlite.schema import SqliteSchema

            return SqliteSchema(url, names=names, migrations=migrations, report=report)
        case "mysql":
            from pillarbox.stores.mariadb.schema import MariadbSchema

            return MariadbSchema(url, names=names, migrations=migrations, report=report)
    raise ConfigError(f"A {url.scheme} store has no tables that Pillarbox makes; schema commands do not apply to it.")
