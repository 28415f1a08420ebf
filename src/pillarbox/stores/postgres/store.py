"""The PostgreSQL store: the parts, assembled."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pillarbox.clock import Clock
from pillarbox.names import Names
from pillarbox.protocols import StoreFeatures
from pillarbox.stores.keeping import Keep, check_keep
from pillarbox.stores.migrations import check_version, latest_version
from pillarbox.stores.postgres.connection import Database, Pooler
from pillarbox.stores.postgres.drivers import DriverName
from pillarbox.stores.postgres.inspecting import Inspecting
from pillarbox.stores.postgres.listening import Listening
from pillarbox.stores.postgres.membership import Membership
from pillarbox.stores.postgres.operating import Operating
from pillarbox.stores.postgres.reading import ReadingLanes
from pillarbox.stores.postgres.settling import Settling
from pillarbox.stores.sql import Statements

__all__ = ["PostgresStore"]

_PACKAGE: Final = "pillarbox.stores.postgres"


class PostgresStore(ReadingLanes, Settling, Membership, Operating, Listening, Inspecting):
    """`Store` on PostgreSQL 13 or newer, through asyncpg or psycopg.

    `clock` replaces the server's clock, for tests. `keep` says what stays of a delivered message. With
    `pooler="transaction"` nothing depends on a session: no prepared statement, no setting outside a transaction.
    """

    features: Final = StoreFeatures(name="postgresql", late_rows=True, notifies=True, shared=True, skips_keys=True)

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        pooler: Pooler = "none",
        driver: DriverName | None = None,
        connections: int = 4,
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        check_keep(keep)
        self._url = url
        self._names = Names(schema, prefix)
        self._database = Database(url, driver=driver, pooler=pooler, connections=connections, timeout=timeout)
        self._sql = Statements(_PACKAGE, self._names)
        self._clock = clock
        self._keep = keep

    async def open(self) -> None:
        await self._database.open()
        try:
            await self._check_schema()
        except BaseException:
            await self._database.close()
            raise

    async def _check_schema(self) -> None:
        async with self._database.quick() as connection:
            version = await connection.fetchval(self._names.applied("select max(version) from pillarbox_schema"))
        check_version(version, latest=latest_version("postgres"))

    async def close(self) -> None:
        await self._database.close()
