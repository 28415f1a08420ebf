"""One key in a relay's hands: who goes, who waits, and whether the table holds more that must go first."""

from __future__ import annotations

import math
from bisect import insort

import msgspec

__all__ = ["Line"]


class Line(msgspec.Struct, gc=False, eq=False):
    """The messages of one key. One is under way at a time; the others stand behind it in id order.

    The line is blocked while the table holds a `retry`, `parked` or `held` message of the key that is not in
    hand. Whatever else is met of a blocked key is parked. The waiting ones are read when the line is quiet, so
    that nothing changes between the question and its answer but by more parking.
    """

    partition: int
    current: int | None = None
    """The message that is under way, or chosen to be next."""
    queue: list[int] = []
    """The others in hand, by id."""
    unsettled: int = 0
    """How many left the line with an outcome that is not recorded yet."""
    stopped: bool = False
    """One of those closed without an acknowledgement: nothing goes before that is durable."""
    blocked: bool = False
    front: int | None = None
    """The waiting message that is known to stand first in the table; None: not known."""
    due: set[int] = set()
    """Waiting messages whose time has come."""
    fetching: bool = False
    """The waiting messages are being read."""
    parking: int = 0
    """Parks that are decided and not yet committed."""
    parked_from: float = math.inf
    """The first message that was parked since that read began: it may stand before what the read found."""
    met_to: int | None = None
    """The key is crowded: its fresh messages were met up to this id, and left in the table above it."""
    lags: bool = False
    """The next waiting message stands above that id: what was left before it must be met first."""

    def join(self, message_id: int) -> None:
        """Stand in the line, in id order, behind what is under way."""
        if not self.queue or message_id > self.queue[-1]:
            self.queue.append(message_id)
        else:
            insort(self.queue, message_id)

    def forget(self, message_id: int) -> None:
        """It is in hand no more, and there is nothing to record."""
        self.leave(message_id)
        self.unsettled -= 1

    def leave(self, message_id: int) -> None:
        """Step out of the line, with an outcome to be recorded."""
        self.unsettled += 1
        if self.current == message_id:
            self.current = None
        else:
            self.queue.remove(message_id)
        if self.blocked:
            self.due.discard(message_id)
            if self.front == message_id:
                self.front = None

    def park(self, message_id: int) -> None:
        """One more message of this key is put aside."""
        self.blocked = True
        self.parking += 1
        self.parked_from = min(self.parked_from, message_id)

    def may_go(self, message_id: int) -> bool:
        """Whether nothing that is known to wait in the table stands before it."""
        return self.front is None or message_id <= self.front

    def has_left(self, message_id: int) -> bool:
        """Whether something before that message, or it itself, was left in the table unmet."""
        return self.met_to is not None and message_id > self.met_to

    def comes_due(self, message_id: int) -> bool:
        """A waiting message's time has come: whether it can be taken without asking what stands before it."""
        self.blocked = True
        self.due.add(message_id)
        return self.is_quiet and self.front is not None and message_id <= self.front

    def fetch(self) -> None:
        """A read of the waiting messages begins."""
        self.fetching = True
        self.parked_from = math.inf

    def freed(self) -> None:
        """The table holds nothing of this key but what is in hand."""
        self.blocked, self.front = False, None
        self.due.clear()

    @property
    def has_parked(self) -> bool:
        """Something was put aside that the last read could not see."""
        return self.parking > 0 or self.parked_from < math.inf

    @property
    def is_quiet(self) -> bool:
        """Nothing of it is in hand or being read."""
        return not (self.current is not None or self.queue or self.unsettled or self.fetching)

    @property
    def wants_reading(self) -> bool:
        """Its next messages are in the table, and nothing known stands before them."""
        return self.blocked and self.front is None and not self.parking and not self.lags and self.is_quiet

    @property
    def has_room(self) -> bool:
        """It is crowded, and what was left of it can be met now."""
        return (not self.blocked or self.lags) and not self.parking and self.is_quiet

    @property
    def is_forgettable(self) -> bool:
        """There is nothing to remember about it."""
        return not (self.blocked or self.parking or self.met_to is not None) and self.is_quiet
