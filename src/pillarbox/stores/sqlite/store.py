"""The SQLite store: the parts, assembled."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pillarbox.clock import Clock, SystemClock
from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.protocols import StoreFeatures
from pillarbox.stores.keeping import Keep, check_keep
from pillarbox.stores.migrations import check_version, latest_version
from pillarbox.stores.sql import Statements
from pillarbox.stores.sqlite.connection import Database, Synchronous
from pillarbox.stores.sqlite.inspecting import Inspecting
from pillarbox.stores.sqlite.reading import ReadingLanes
from pillarbox.stores.sqlite.watching import Watching
from pillarbox.stores.stepwise.membership import Membership
from pillarbox.stores.stepwise.operating import Operating
from pillarbox.stores.stepwise.settling import Settling

__all__ = ["SqliteStore"]

_PACKAGE: Final = "pillarbox.stores.sqlite"


class SqliteStore(ReadingLanes, Settling, Membership, Operating, Watching, Inspecting):
    """`Store` in an SQLite file, which any number of processes of one machine share.

    `clock` is the store's clock. `keep` says what stays of a delivered message. With `synchronous="normal"` no
    commit waits for the disk: a power cut may take back the last ones, though never damage the file. A writer
    that holds the file longer than `busy_timeout` is a `StoreUnavailable`.
    """

    _database: Database
    features: Final = StoreFeatures(name="sqlite", late_rows=False, notifies=False, shared=True, skips_keys=True)

    def __init__(
        self,
        path: str | Path,
        *,
        schema: None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        synchronous: Synchronous = "full",
        busy_timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        if schema is not None:
            raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")
        if synchronous not in ("full", "normal"):
            raise ConfigError(f"synchronous is {synchronous!r}: write 'full' or 'normal'.")
        check_keep(keep)
        self._keep = keep
        self._database = Database(
            Path(path),
            statements=Statements(_PACKAGE, Names(prefix=prefix)),
            clock=SystemClock() if clock is None else clock,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
        )

    async def open(self) -> None:
        await self._database.open()
        try:
            rows = await self._database.reading(lambda tx: tx.rows("schema_version"))
            check_version(rows[0][0], latest=latest_version("sqlite"))
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        await self._database.close()
