"""Reading lanes: fresh, due and blocked messages. One writer at a time: ids appear in order, so nothing comes late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from pillarbox.message import Message, Waits
from pillarbox.protocols import BlockedKey, Cursor, Reading
from pillarbox.stores.sqlite.connection import Transaction
from pillarbox.stores.sqlite.parts import Parts
from pillarbox.stores.sqlite.rows import json_of, messages_of, time_of

__all__ = ["ReadingLanes"]

_ids: Final = msgspec.json.Decoder(list[int]).decode
_PARTITION: Final = 3


class ReadingLanes(Parts):
    """The reading part of the store."""

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        def work(tx: Transaction) -> tuple[list[Any], Cursor, frozenset[int]]:
            valid = cursor if cursor is not None and cursor.session is tx.session else Cursor(session=tx.session)
            low = {partition: valid.low.get(partition, 0) for partition in partitions}
            ids, ends = _fresh(tx, destination, low, limit=limit, skip=valid.skip)
            rows = tx.rows("read", {"ids": json_of(ids)}) if ids else []
            return rows, _advanced(valid, rows, ends), frozenset(ends)

        # Messages are made here and not in the store's thread, which is the one that everything waits for.
        rows, advanced, ends = await self._database.reading(work)
        return Reading(messages_of(rows), advanced, ends)

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        asked = _lanes(destination, partitions) | {"limit": limit, "skip": json_of(skip)}
        return messages_of(await self._database.reading(lambda tx: tx.rows("read_due", asked)))

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        asked = {"destination": destination, "partition": partition, "key": key, "after": after, "limit": limit}
        return messages_of(await self._database.reading(lambda tx: tx.rows("read_key", asked)))

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        asked = _lanes(destination, partitions)
        rows = await self._database.reading(lambda tx: tx.rows("blocked_keys", asked))
        return [BlockedKey(partition, key, Waits(front)) for partition, key, front in rows]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        rows = await self._database.reading(lambda tx: tx.rows("next_due", _lanes(destination, partitions)))
        due: int | None = rows[0][0]
        return None if due is None else time_of(due)


def _lanes(destination: str, partitions: Sequence[int]) -> dict[str, object]:
    return {"destination": destination, "partitions": json_of(partitions)}


def _fresh(
    tx: Transaction, destination: str, low: dict[int, int], *, limit: int, skip: Sequence[str]
) -> tuple[list[int], dict[int, int]]:
    """Rounds over the lanes that may have more, until there are enough: the ids, and the lanes that have no more.

    Those come with the highest id in them, where keys were skipped; else with 0.
    """
    chosen: list[int] = []
    complete: dict[int, int] = {}
    while low and len(chosen) < limit:
        room = limit - len(chosen)
        share = max(1, room // len(low))
        ahead, ends = _ids_ahead(tx, {"destination": destination, "limit": 2 * share, "skip": json_of(skip)}, low)
        round_ = _chosen(list(ahead.values()), floor=max(1, share // 2), room=room)
        low = {partition: ids[-1] for partition, ids in ahead.items() if len(ids) == 2 * share}
        complete |= {p: ends[p] for p in _read_out(ahead.keys() - low.keys(), ahead, set(round_))}
        chosen += round_
    return chosen, complete


def _read_out(lanes: Iterable[int], ahead: Mapping[int, Sequence[int]], chosen: set[int]) -> set[int]:
    """Those of the lanes of which nothing was left: what is chosen is a beginning, so the last one tells."""
    return {partition for partition in lanes if not ahead[partition] or ahead[partition][-1] in chosen}


def _ids_ahead(
    tx: Transaction, asked: dict[str, object], low: dict[int, int]
) -> tuple[dict[int, list[int]], dict[int, int]]:
    statement = "read_ahead" if asked["skip"] == "[]" else "read_ahead_skipping"
    rows = tx.rows(statement, asked | {"low": msgspec.json.encode(low).decode()})
    return {partition: _ids(ids) for partition, ids, _ in rows}, {partition: end or 0 for partition, _, end in rows}


def _chosen(lanes: Sequence[Sequence[int]], *, floor: int, room: int) -> list[int]:
    """A floor for each lane in turn, so that none starves, and then the oldest of all of them.

    Neighbours in the table stay together that way, and are cheaper to read and to close. What is chosen of a lane
    is always its beginning.
    """
    first = [id_ for ids in lanes for id_ in ids[:floor]][:room]
    rest = sorted(id_ for ids in lanes for id_ in ids[floor:])
    return first + rest[: room - len(first)]


def _advanced(cursor: Cursor, rows: Sequence[Any], ends: Mapping[int, int]) -> Cursor:
    """The rows are in id order, so the last of a lane is its new mark; of one read to its end, the end is."""
    low = {**cursor.low, **{row[_PARTITION]: row[0] for row in rows}}
    low |= {partition: end for partition, end in ends.items() if end > low.get(partition, 0)}
    return Cursor(low, None, cursor.session)
