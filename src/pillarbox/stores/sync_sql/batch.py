"""Batch selection: which of the ids that lie ahead in several lanes one read takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pillarbox.contracts.store import NO_BYTE_LIMIT
from pillarbox.stores.rules import cut_sizes
from pillarbox.stores.sync_sql.database import Transaction

__all__ = ["cut_batch", "find_complete_lanes", "name_keys", "select_batch"]


def select_batch(lanes: Sequence[Sequence[int]], *, floor: int, limit: int) -> list[int]:
    """Take up to `floor` ids of each lane in turn, so that none starves, and then the oldest of all of them.

    Neighbours in the table stay together that way, and are cheaper to read and to close. What is taken of a lane is
    always its beginning.
    """
    first = [id_ for ids in lanes for id_ in ids[:floor]][:limit]
    rest = sorted(id_ for ids in lanes for id_ in ids[floor:])
    return first + rest[: limit - len(first)]


def find_complete_lanes(lanes: Iterable[int], ahead: Mapping[int, Sequence[int]], batch: set[int]) -> set[int]:
    """Return the lanes of which nothing is left ahead. A batch takes beginnings, so the last id of a lane decides."""
    return {partition for partition in lanes if not ahead[partition] or ahead[partition][-1] in batch}


def cut_batch(tx: Transaction, ids: Sequence[int], max_bytes: int) -> list[int]:
    """Return the ids up to the one whose payload brings the sum to `max_bytes`: of each lane still a beginning."""
    if not ids or max_bytes == NO_BYTE_LIMIT:
        return list(ids)
    # One row instead of one for each message: SQLite's driver gives up the interpreter for every row, and an event loop
    # that has work to do keeps it for milliseconds.
    ((total,),) = tx.query("total_size", {"ids": list(ids)})
    if total < max_bytes:
        return list(ids)
    sizes = dict(tx.query("sizes", {"ids": list(ids)}))
    return cut_sizes([(id_, sizes.get(id_, 0)) for id_ in ids], max_bytes)


def name_keys(destination: str, keys: Sequence[tuple[int, str]], *, limit: int) -> list[dict[str, object]]:
    """Return the values of a statement that looks for the first blocked messages of each key, by its number."""
    return [
        {"destination": destination, "partition": partition, "key": key, "number": number, "limit": limit}
        for number, (partition, key) in enumerate(keys)
    ]
