"""Partitions of history: added ahead of the ids, and dropped when all that is in one has expired.

Only the owner of the tables may change them, so functions of his do it, which a relay may call. They wait for a lock
for a tenth of a second at most: whoever queues behind the wait is delayed by that. What cannot be had is tried again in
the next run, and meanwhile rows go into the default partition, or stay a little longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from pillarbox.contracts.store import HistoryPartition
from pillarbox.durations import FOREVER
from pillarbox.errors import StoreBusy, StoreForbidden
from pillarbox.message import State
from pillarbox.stores.postgres.connection import Database
from pillarbox.stores.sql import Statements

__all__ = ["FIRST_ID", "Partitions"]

FIRST_ID: Final = -(2**63)
"""No message has it: a walk after it begins with the first."""
_MOST_KEPT: Final = 1_000
"""Messages that a partition may leave behind in the default one when it is dropped. With more, its rows are deleted."""
_STEP: Final = 100_000
"""Messages of a detached partition that one transaction walks over."""
_STEP_IDS: Final = 250_000
"""Ids whose messages one statement looks at."""
_SPARED: Final = 10
"""A partition that was written within such a part of the retention is dropped as a whole, that much later at most."""
_LEAST_AGE: Final = timedelta(minutes=1)
"""No statement that closes messages takes so long: what is closed from now on is younger."""
_SCAN_BOUND: Final = "set local statement_timeout = '2s'"
"""To attach a partition reads all of the default one, under a lock. It is small, unless nobody extended history."""
_STATES: Final = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)


class _Part(NamedTuple):
    """Partition whose ids have all been given."""

    number: int
    first: int
    last: int
    first_found: int | None
    first_at: datetime | None
    last_at: datetime | None


class Partitions:
    """Adds and drops the partitions of history."""

    def __init__(self, database: Database, sql: Statements, *, read_now: Callable[[], Awaitable[datetime]]) -> None:
        self._database = database
        self._sql = sql
        self._read_now = read_now

    async def extend(self) -> int:
        """Add partitions ahead of the ids; return how many. 0 if another session has a lock, or it may not."""
        try:
            async with self._database.durable(limited=False) as connection:
                await connection.execute(_SCAN_BOUND)
                added: int = await connection.fetchval(self._sql["history_extend"])
        except (StoreBusy, StoreForbidden):
            return 0
        return added

    async def find_expired(self, ages: Mapping[State, timedelta], *, after: int | None) -> HistoryPartition | None:
        """Return the next partition that holds almost nothing but expired messages; None if there is none above."""
        if after is None and (number := await self._find_detached()) is not None:
            return HistoryPartition(number=number, first=FIRST_ID, last=FIRST_ID, is_detached=True)
        cutoffs = _compute_cutoffs(ages, await self._read_now())
        if State.DELIVERED not in cutoffs:
            return None
        for part in await self._list(after=FIRST_ID if after is None else after):
            if part.last_at is not None and part.last_at >= cutoffs[State.DELIVERED]:
                continue
            keep = await self._list_kept(part, cutoffs)
            if keep is not None:
                return HistoryPartition(
                    number=part.number, first=part.first, last=part.last, cutoffs=cutoffs, keep=keep
                )
        return None

    async def drop(self, partition: HistoryPartition) -> int:
        """Drop a partition, but for what must stay; return how many messages are gone.

        Raises `StoreBusy` if another session has a lock on history for long: nothing has changed then.
        """
        if not partition.is_detached:
            cutoffs = {state.value: at.isoformat() for state, at in partition.cutoffs.items()}
            async with self._database.durable(limited=False) as connection:
                values = (partition.number, list(partition.keep), msgspec.json.encode(cutoffs).decode())
                if not await connection.fetchval(self._sql["history_detach"], *values):
                    return 0
        removed: int = 0
        after = FIRST_ID
        while True:
            async with self._database.durable(limited=False) as connection:
                count, end = await connection.fetchrow(self._sql["history_remove"], partition.number, after, _STEP)
            removed += count
            if end is None:
                return removed
            after = end

    async def list_spared(self, older_than: timedelta) -> list[tuple[int, int]]:
        """List the first and last ids of partitions that will be dropped soon: their rows are not deleted before."""
        slack = older_than / _SPARED
        now = await self._read_now()
        return [
            (part.first, part.last)
            for part in await self._list(after=FIRST_ID)
            if part.first_at is not None
            and part.last_at is not None
            and part.last_at - part.first_at <= slack
            and now - part.last_at - slack <= older_than
        ]

    async def _find_detached(self) -> int | None:
        async with self._database.durable() as connection:
            rows = await connection.fetch(self._sql["history_detached"])
        return min((row[0] for row in rows), default=None)

    async def _list(self, *, after: int) -> list[_Part]:
        async with self._database.durable(limited=False) as connection:
            rows: Sequence[Any] = await connection.fetch(self._sql["history_partitions"])
        return sorted(_Part(*row) for row in rows if row[1] > after)

    async def _list_kept(self, part: _Part, cutoffs: Mapping[State, datetime]) -> list[int] | None:
        """List the ids in a partition that must stay; None if these, or those that are still open, are many."""
        async with self._database.durable() as connection:
            count = await connection.fetchval(self._sql["history_open"], part.first, part.last, _MOST_KEPT + 1)
        if count > _MOST_KEPT:
            return None
        kept: list[int] = []
        times = [cutoffs.get(state) for state in _STATES]
        for first, last in _split(part):
            async with self._database.durable(limited=False) as connection:
                rows = await connection.fetch(
                    self._sql["history_stays"], first, last, *times, _MOST_KEPT + 1 - len(kept)
                )
            kept += [row[0] for row in rows]
            if len(kept) > _MOST_KEPT:
                return None
        return kept


def _split(part: _Part) -> Iterator[tuple[int, int]]:
    """Split the ids of a partition into steps, from the first that is in it."""
    if part.first_found is not None:
        for first in range(part.first_found, part.last + 1, _STEP_IDS):
            yield first, min(first + _STEP_IDS - 1, part.last)


def _compute_cutoffs(ages: Mapping[State, timedelta], now: datetime) -> dict[State, datetime]:
    """Return the times before which messages of each state have expired."""
    oldest = now - datetime.min.replace(tzinfo=now.tzinfo)
    return {state: now - max(age, _LEAST_AGE) for state, age in ages.items() if age != FOREVER and age < oldest}
