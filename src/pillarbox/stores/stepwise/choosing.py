"""Which of the ids that lanes have ahead are read now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["chosen_of", "read_out"]


def read_out(lanes: Iterable[int], ahead: Mapping[int, Sequence[int]], chosen: set[int]) -> set[int]:
    """Those of the lanes of which nothing was left: what is chosen is a beginning, so the last one tells."""
    return {partition for partition in lanes if not ahead[partition] or ahead[partition][-1] in chosen}


def chosen_of(lanes: Sequence[Sequence[int]], *, floor: int, room: int) -> list[int]:
    """A floor for each lane in turn, so that none starves, and then the oldest of all of them.

    Neighbours in the table stay together that way, and are cheaper to read and to close. What is chosen of a lane
    is always its beginning.
    """
    first = [id_ for ids in lanes for id_ in ids[:floor]][:room]
    rest = sorted(id_ for ids in lanes for id_ in ids[floor:])
    return first + rest[: room - len(first)]
