"""The MariaDB store: the parts, assembled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from pillarbox.clock import Clock
from pillarbox.names import Names
from pillarbox.protocols import StoreFeatures, Wakeups
from pillarbox.stores.keeping import Keep, check_keep
from pillarbox.stores.mariadb.connection import Database
from pillarbox.stores.mariadb.inspecting import Inspecting
from pillarbox.stores.mariadb.reading import ReadingLanes
from pillarbox.stores.migrations import check_version, latest_version
from pillarbox.stores.stepwise.membership import Membership
from pillarbox.stores.stepwise.operating import Operating
from pillarbox.stores.stepwise.settling import Settling

__all__ = ["MariadbStore"]


class _Deaf:
    """MySQL tells nobody of a commit: relays ask."""

    is_listening: Final = False


class MariadbStore(ReadingLanes, Settling, Membership, Operating, Inspecting):
    """`Store` on MariaDB 10.6 or MySQL 8.0, or newer, through PyMySQL in threads.

    `schema` is the database of the tables, where it is not the URL's. `keep` says what stays of a delivered message;
    `clock` is the server's unless given, and whoever does not answer within `timeout` is a `StoreUnavailable`.
    """

    _database: Database
    features: Final = StoreFeatures(name="mysql", late_rows=True, notifies=False, shared=True)

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        connections: int = 4,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        check_keep(keep)
        self._keep = keep
        self._database = Database(
            url,
            names=Names(schema, prefix),
            clock=clock,
            connections=connections,
            timeout=timeout,
        )

    async def open(self) -> None:
        await self._database.open()
        try:
            rows = await self._database.rows("schema_version")
            check_version(rows[0][0], latest=latest_version("mariadb"))
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        await self._database.close()

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:  # noqa: ARG002 - nobody calls it
        yield _Deaf()
