"""Looking at the server: the settings that lose commits or order, and who holds things up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.protocols import Finding
from pillarbox.stores.mariadb.connection import Database
from pillarbox.stores.mariadb.facts import MariadbFacts, findings_of

__all__ = ["Inspecting"]


class Inspecting:
    """The inspecting part of the store."""

    _database: Database

    async def inspect(self) -> Sequence[Finding]:
        """What is set on the server that could lose or delay messages. Changes nothing."""
        return findings_of(await self.facts())

    async def facts(self) -> MariadbFacts:
        """What the findings are drawn from."""
        (settings,) = await self._database.rows("inspect_settings")
        engines = await self._database.rows("inspect_engines", self._database.where())
        return MariadbFacts(
            read_only=bool(settings[0]), flush_at_commit=settings[1], binary_log=bool(settings[2]),
            sync_binlog=settings[3], id_steps=settings[4],
            engines=[f"{table} ({engine})" for table, engine in engines], longest=await self._longest(),
        )  # fmt: skip

    async def _longest(self) -> timedelta | None:
        try:
            ((seconds,),) = await self._database.rows("inspect_transactions")
        except StoreUnavailable:
            raise
        except StoreError:  # this login may not look
            return None
        return None if seconds is None else timedelta(seconds=int(seconds))
