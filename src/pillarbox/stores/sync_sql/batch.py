"""Batch selection: which of the ids that lie ahead in several lanes one read takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["find_complete_lanes", "select_batch"]


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
