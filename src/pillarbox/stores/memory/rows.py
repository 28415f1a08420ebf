"""The open messages, by id and by lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from pillarbox.message import Message

__all__ = ["OpenRows"]

_BY_ID: Final = attrgetter("id")


class OpenRows:
    """Rows by id, with an index by lane so that reading an idle lane costs nothing."""

    def __init__(self) -> None:
        self._rows: dict[int, Message] = {}
        self._lanes: dict[tuple[str, int], dict[int, Message]] = defaultdict(dict)

    def ids(self) -> Iterable[int]:
        """The ids of all of them, in no order."""
        return self._rows.keys()

    def get(self, id: int) -> Message | None:
        """The row, if it is open."""
        return self._rows.get(id)

    def put(self, message: Message) -> None:
        """Write a row, in place of the one with its id."""
        self.drop(message.id)
        self._rows[message.id] = message
        self._lanes[message.destination, message.partition][message.id] = message

    def drop(self, id: int) -> None:
        """Remove a row, if it is there."""
        row = self._rows.pop(id, None)
        if row is not None:
            del self._lanes[row.destination, row.partition][id]

    def in_lane(self, destination: str, partition: int) -> Sequence[Message]:
        """The rows of one lane, by id."""
        lane = self._lanes.get((destination, partition))
        return sorted(lane.values(), key=_BY_ID) if lane else ()
