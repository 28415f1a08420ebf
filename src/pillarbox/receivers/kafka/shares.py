"""How far a partition is handled, and what the cluster is told of it. Pure.

Kafka keeps one number per partition, and no note of who has had what. So the offset that is committed is the lowest
that is not settled, and with it goes a mark: below it, messages may have been handed out. The mark is committed before
anything above it is handed out, so whoever has the partition next knows what may have been in dead hands.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

__all__ = ["Note", "Share", "mark_in"]

_AHEAD: Final = 1_000
"""Messages that may be handed out until the mark is raised again."""
_MARK: Final = re.compile(r"pillarbox:(\d{1,19})")


class Note(NamedTuple):
    """What is committed of a partition."""

    offset: int
    """The lowest that is not settled."""
    mark: int

    @property
    def metadata(self) -> str:
        return f"pillarbox:{self.mark}"


def mark_in(metadata: str | None) -> int:
    """The mark that was committed; 0 if it was not by us."""
    match = _MARK.fullmatch(metadata or "")
    return int(match[1]) if match else 0


class Share:
    """One partition in our hands, from its assignment until it is taken away."""

    def __init__(self, topic: str, partition: int, *, mark: int) -> None:
        self.topic = topic
        self.partition = partition
        self.is_ours = True
        self._before = mark
        """Below it, messages may have been handed out before it was ours."""
        self._mark = mark
        self._known = mark
        """The mark that the cluster has."""
        self._agreed: Note | None = None
        """What the cluster has said that it has."""
        self._open: deque[int] = deque()
        """From the lowest that is not settled on, in order."""
        self._settled: set[int] = set()
        """Of those, the ones that are."""
        self._next: int | None = None

    def take(self, offset: int) -> bool:
        """A message came, and is to be handled. Whether it may have been handed out before."""
        is_back = bool(self._open) and offset < self._open[-1]  # a leader has lost what it had, and counts on below
        self._open.append(offset)
        if is_back:
            self._open = deque(sorted(self._open))
        self._next = max(offset + 1, self._next or 0)
        if offset >= self._mark:
            self._mark = offset + _AHEAD
        return offset < self._before

    def may_hand_out(self, offset: int) -> bool:
        """Whether the cluster knows of it."""
        return offset < self._known

    def settle(self, offset: int) -> None:
        """It is done with, for good."""
        self._settled.add(offset)
        while self._open and self._open[0] in self._settled:
            self._settled.discard(self._open.popleft())

    def is_safe(self, offset: int) -> bool:
        """Whether nothing more is to be heard of this settled one: it is committed, or must wait for an earlier."""
        return (
            not self.is_ours or self._position <= offset or (self._agreed is not None and self._agreed.offset > offset)
        )

    def note(self) -> Note | None:
        """What is to be committed now; None: the cluster has it all."""
        if self._next is None:
            return None
        note = Note(self._position, self._mark)
        return None if note == self._agreed else note

    def agreed(self, note: Note) -> None:
        """The cluster has this."""
        self._agreed = note
        self._known = max(self._known, note.mark)

    @property
    def _position(self) -> int:
        return self._open[0] if self._open else self._next or 0
