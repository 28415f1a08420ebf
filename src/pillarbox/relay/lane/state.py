"""What the ordering core knows about one destination's lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from pillarbox.message import Message
from pillarbox.relay.lane.hand import Hand, Slot
from pillarbox.relay.lane.line import Line

__all__ = ["LaneState"]


class LaneState:
    """Lanes, keys and messages in hand. The parts of the core share it; nobody else looks inside."""

    def __init__(self, *, window: int, key_share: int, leaves: bool = False) -> None:
        self.window = window
        self._leaves = leaves
        """The rest of a hot key is left in the table, because reads can skip it; otherwise it is parked."""
        self.is_open = True
        """False while the destination is down or paused: nothing more is sent."""
        self._key_share = max(1, key_share)
        self._hand = Hand()
        self._lines: dict[str, Line] = {}
        self._lanes: set[int] = set()
        self._restart: set[int] = set()
        """Lanes to be read from their start, because something went back into them, or they are new."""
        self._suspended: set[int] = set()
        """Lanes that take no news before they are read from their start: what went back must come first."""
        self._returning: dict[int, int] = {}
        """Lane to how many of its messages are on their way back to the table."""
        self._era: dict[int, int] = {}
        """Lane to how often something went back into it. What was met before that goes back too."""
        self._read_to: dict[int, float] = {}
        """Lane to the id up to which its fresh messages were met. A waiting message above it is not taken yet:
        a fresh one of its key may still come before it."""
        self._unread: dict[int, dict[str, None]] = {}
        """Lane to the keys whose waiting messages stand above that id."""
        self._marks: dict[int, int] = {}
        """Lane to the mark of its last read: what is left of a crowded key below it, no further read will bring."""
        self._crowded: dict[str, Line] = {}
        """Keys of which something was left."""
        self._wanted: dict[str, None] = {}
        """Keys to read, in the order they were wanted."""
        self._ready: deque[Slot] = deque()
        self._lone: deque[Slot] = deque()
        self._strikes: dict[int, int] = {}
        """Message to how often a connection broke with it under way, also while it is not in hand."""
        self._reads = 0
        """Reads under way."""
        self._closed_meanwhile: set[int] = set()
        """What left the hand since they began, and may be in their answers."""

    @property
    def partitions(self) -> list[int]:
        """The lanes that are ours."""
        return sorted(self._lanes)

    @property
    def in_hand(self) -> int:
        """How many messages are claimed, or being claimed, and not settled."""
        return len(self._hand.slots)

    @property
    def room(self) -> int:
        """How many more messages fit into the window."""
        return self.window - len(self._hand.slots)

    def is_in_hand(self, message: Message) -> bool:
        return message.id in self._hand.slots

    def is_drained(self, partition: int) -> bool:
        """Nothing of a lane is in hand any more."""
        return not self._hand.of_lane(partition)

    @property
    def has_strikes(self) -> bool:
        """Some message was under way when a relay or a connection died."""
        return bool(self._strikes)

    def strikes(self, message_id: int) -> int:
        """How often a relay or a connection died with this message under way."""
        slot = self._hand.slots.get(message_id)
        return slot.strikes if slot else 0

    def _hold(self, message: Message) -> Slot:
        strikes = self._strikes.get(message.id, 0) if self._strikes else 0
        slot = self._hand.slots[message.id] = Slot(message, 0, strikes, self._era[message.partition])
        return slot

    def _look(self, key: str, line: Line) -> None:
        """See whether a line needs reading, or can be forgotten."""
        if line.wants_reading:
            if key not in self._unread.get(line.partition, ()):
                self._wanted[key] = None
        elif line.is_forgettable:
            del self._lines[key]

    def _meet_all(self, partitions: Collection[int]) -> None:
        """The crowded keys of these lanes are crowded no more: whatever was left of them will be read again."""
        for key, line in [(k, line) for k, line in self._crowded.items() if line.partition in partitions]:
            self._uncrowd(key, line)
            if self._lines.get(key) is line:
                self._look(key, line)

    def _uncrowd(self, key: str, line: Line) -> None:
        del self._crowded[key]
        line.met_to, line.lags = None, False

    def _forget(self, partitions: set[int]) -> None:
        """What there was to find out about lanes that are not ours any more."""
        self._meet_all(partitions)
        for key in [k for k in self._wanted if k not in self._lines or self._lines[k].partition in partitions]:
            del self._wanted[key]
        self._suspended -= partitions
        self._restart -= partitions
        for partition in partitions:
            self._returning.pop(partition, None)
            self._unread.pop(partition, None)
