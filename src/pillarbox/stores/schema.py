"""Installing, changing and checking the tables of a store: one shape for every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.catalog import Difference
from pillarbox.stores.migrations import Migration, Plan
from pillarbox.stores.urls import StoreUrl

__all__ = ["Schema", "schema_at"]


class Schema(Protocol):
    """The tables of one store. Each call connects, is one transaction, and lets go again.

    Any number of processes may call at once: they take turns, and the later ones find the work done.
    """

    async def version(self) -> int:
        """The version of the tables; 0 when there are none."""

    async def install(self) -> Plan:
        """Create the tables where there are none. `SchemaOutdated` or `SchemaNewer` where they do not fit."""

    async def upgrade(self, *, target: int | None = None) -> Plan:
        """Bring the tables to the target, by default the latest version; from nothing too."""

    async def downgrade(self, *, target: int) -> Plan:
        """Take the tables back to an older version; 0 removes everything, messages included."""

    async def verify(self) -> Sequence[Difference]:
        """How the tables differ from what their version should have. Changes nothing.

        `SchemaMissing`, `SchemaOutdated` or `SchemaNewer` when the version does not fit this release.
        """


def schema_at(url: StoreUrl, *, names: Names, migrations: Sequence[Migration] | None = None) -> Schema:
    """The tables that a store URL points to. `migrations` are those of this release unless given."""
    match url.scheme:
        case "postgresql":
            from pillarbox.stores.postgres.schema import PostgresSchema

            return PostgresSchema(url, names=names, migrations=migrations)
        case "sqlite":
            from pillarbox.stores.sqlite.schema import SqliteSchema

            return SqliteSchema(url, names=names, migrations=migrations)
        case "mysql":
            from pillarbox.stores.mariadb.schema import MariadbSchema

            return MariadbSchema(url, names=names, migrations=migrations)
    raise ConfigError(f"A {url.scheme} store has no tables that Pillarbox makes; schema commands do not apply to it.")
