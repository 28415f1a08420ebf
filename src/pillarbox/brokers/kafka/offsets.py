"""Progress within a partition, and what is committed of it. Pure.

Kafka keeps one offset per partition and does not record which messages a consumer has already had. So we commit the
lowest offset that is not settled, and a mark as its metadata: messages below the mark may have been handed out. The
mark is committed before anything above it is handed out. The next owner of the partition therefore knows which messages
a dead consumer may have had.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

__all__ = ["Commit", "PartitionProgress", "parse_mark"]

_MARK_STEP: Final = 1_000
"""Messages that can be handed out before the mark is raised again. One commit per message would be too slow."""
_METADATA: Final = re.compile(r"pillarbox:(\d{1,19})")


class Commit(NamedTuple):
    """Offset and mark, as they are committed for a partition."""

    offset: int
    """The lowest offset that is not settled."""
    mark: int

    @property
    def metadata(self) -> str:
        return f"pillarbox:{self.mark}"


def parse_mark(metadata: str | None) -> int:
    """Return the mark in a commit's metadata; 0 if another program wrote it."""
    match = _METADATA.fullmatch(metadata or "")
    return int(match[1]) if match else 0


class PartitionProgress:
    """One assigned partition, from its assignment until it is revoked."""

    def __init__(self, topic: str, partition: int, *, mark: int) -> None:
        self.topic = topic
        self.partition = partition
        self.is_assigned = True
        self._inherited_mark = mark
        """Messages below it may have been handed out by an earlier owner."""
        self._mark = mark
        self._committed_mark = mark
        self._committed: Commit | None = None
        self._open: deque[int] = deque()
        """Offsets in order, from the lowest that is not settled."""
        self._settled: set[int] = set()
        """Settled offsets above the lowest open one."""
        self._next: int | None = None

    def add(self, offset: int) -> bool:
        """Add a message that was read; return True if it may have been handed out before."""
        # After an unclean leader election the new leader can go on below offsets that we already have.
        is_out_of_order = bool(self._open) and offset < self._open[-1]
        self._open.append(offset)
        if is_out_of_order:
            self._open = deque(sorted(self._open))
        self._next = max(offset + 1, self._next or 0)
        if offset >= self._mark:
            self._mark = offset + _MARK_STEP
        return offset < self._inherited_mark

    def can_hand_out(self, offset: int) -> bool:
        """Return True if the committed mark is above this offset."""
        return offset < self._committed_mark

    def settle(self, offset: int) -> None:
        """Mark a message as handled."""
        self._settled.add(offset)
        while self._open and self._open[0] in self._settled:
            self._settled.discard(self._open.popleft())

    def is_final(self, offset: int) -> bool:
        """Return True if no commit is awaited for this settled offset.

        It is committed, or an earlier message has to be settled first, or the partition was revoked.
        """
        return (
            not self.is_assigned
            or self._position <= offset
            or (self._committed is not None and self._committed.offset > offset)
        )

    def pending_commit(self) -> Commit | None:
        """Return what has to be committed now; None if the cluster has it already."""
        if self._next is None:
            return None
        commit = Commit(self._position, self._mark)
        return None if commit == self._committed else commit

    def confirm(self, commit: Commit) -> None:
        """Remember a commit that the cluster has acknowledged."""
        self._committed = commit
        self._committed_mark = max(self._committed_mark, commit.mark)

    @property
    def _position(self) -> int:
        return self._open[0] if self._open else self._next or 0
