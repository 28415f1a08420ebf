"""Reading what waits: for a time, behind another message, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pillarbox.message import Message, Waits
from pillarbox.protocols import BlockedKey
from pillarbox.stores.stepwise.parts import Parts
from pillarbox.stores.stepwise.rows import messages_of, time_of

__all__ = ["ReadingWaiting"]


class ReadingWaiting(Parts):
    """The reading part of the store, but for fresh messages."""

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        asked = _lanes(destination, partitions) | {"limit": limit, "skip": list(skip)}
        return messages_of(await self._database.rows("read_due", asked))

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        asked = {"destination": destination, "partition": partition, "key": key, "after": after, "limit": limit}
        return messages_of(await self._database.rows("read_key", asked))

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        rows = await self._database.rows("blocked_keys", _lanes(destination, partitions))
        return [BlockedKey(partition, key, Waits(front)) for partition, key, front in rows]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        rows = await self._database.rows("next_due", _lanes(destination, partitions))
        due: int | None = rows[0][0]
        return None if due is None else time_of(due)


def _lanes(destination: str, partitions: Sequence[int]) -> dict[str, object]:
    return {"destination": destination, "partitions": list(partitions)}
