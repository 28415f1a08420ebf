"""Reading fresh messages. One writer at a time: ids appear in order, so nothing comes late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pillarbox.protocols import Cursor, Reading
from pillarbox.stores.sqlite.connection import Database, Transaction
from pillarbox.stores.stepwise.choosing import chosen_of, read_out
from pillarbox.stores.stepwise.rows import messages_of
from pillarbox.stores.stepwise.waiting import ReadingWaiting

__all__ = ["ReadingLanes"]

_ids: Final = msgspec.json.Decoder(list[int]).decode
_PARTITION: Final = 3


class ReadingLanes(ReadingWaiting):
    """The reading part of the store."""

    _database: Database

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        def work(tx: Transaction) -> tuple[list[Any], Cursor, frozenset[int]]:
            valid = cursor if cursor is not None and cursor.session is tx.session else Cursor(session=tx.session)
            low = {partition: valid.low.get(partition, 0) for partition in partitions}
            ids, ends = _fresh(tx, destination, low, limit=limit, skip=valid.skip)
            rows = tx.rows("read", {"ids": ids}) if ids else []
            return rows, _advanced(valid, rows, ends), frozenset(ends)

        # Messages are made here and not in the store's thread, which is the one that everything waits for.
        rows, advanced, ends = await self._database.reading(work)
        return Reading(messages_of(rows), advanced, ends)


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
        ahead, ends = _ids_ahead(tx, {"destination": destination, "limit": 2 * share, "skip": list(skip)}, low)
        round_ = chosen_of(list(ahead.values()), floor=max(1, share // 2), room=room)
        low = {partition: ids[-1] for partition, ids in ahead.items() if len(ids) == 2 * share}
        complete |= {p: ends[p] for p in read_out(ahead.keys() - low.keys(), ahead, set(round_))}
        chosen += round_
    return chosen, complete


def _ids_ahead(
    tx: Transaction, asked: dict[str, object], low: dict[int, int]
) -> tuple[dict[int, list[int]], dict[int, int]]:
    statement = "read_ahead_skipping" if asked["skip"] else "read_ahead"
    rows = tx.rows(statement, asked | {"low": msgspec.json.encode(low).decode()})
    return {partition: _ids(ids) for partition, ids, _ in rows}, {partition: end or 0 for partition, _, end in rows}


def _advanced(cursor: Cursor, rows: Sequence[Any], ends: Mapping[int, int]) -> Cursor:
    """The rows are in id order, so the last of a lane is its new mark; of one read to its end, the end is."""
    low = {**cursor.low, **{row[_PARTITION]: row[0] for row in rows}}
    low |= {partition: end for partition, end in ends.items() if end > low.get(partition, 0)}
    return Cursor(low, None, cursor.session)
