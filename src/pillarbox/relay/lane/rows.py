"""Rows in: which messages to claim, which to park, which keys to read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from pillarbox.message import Message, Waits
from pillarbox.protocols import Reading
from pillarbox.relay.lane.line import Line
from pillarbox.relay.lane.state import LaneState

__all__ = ["Offer", "Rows", "Wanted"]


class Offer(msgspec.Struct, frozen=True):
    """What to do with messages that were read: claim these, park those."""

    take: Sequence[Message]
    park: Sequence[Message] = ()


class Wanted(msgspec.Struct, frozen=True):
    """A key whose waiting messages should be read now."""

    key: str
    partition: int
    limit: int


class Rows(LaneState):
    """The reading side of the core."""

    def begin_reading(self) -> tuple[list[int], set[int]]:
        """A read begins. Answers the lanes to read, and those of them to read from their start."""
        self._reads += 1
        restart = {partition for partition in self._restart if not self._returning.get(partition)}
        self._restart -= restart
        self._suspended -= restart
        self._read_to.update(dict.fromkeys(restart, 0))
        self._meet_all(restart)
        return sorted(self._lanes - self._suspended), restart

    def reading_failed(self, restart: Iterable[int]) -> None:
        """It brought nothing: the lanes are to be read from their start still."""
        self._end_read()
        again = self._lanes.intersection(restart)
        self._restart |= again
        self._suspended |= again

    def begin_due(self) -> list[int]:
        """A read of due messages begins. Answers the ids to leave out: those in hand, and those known to be due.

        What is due and must wait behind another of its key would fill the read again and again, and starve the rest.
        """
        self._reads += 1
        in_hand = [message_id for message_id, slot in self._hand.slots.items() if slot.message.waits is not None]
        known = [message_id for line in self._lines.values() if line.due for message_id in line.due]
        return in_hand + known

    def _end_read(self) -> None:
        self._reads -= 1
        if not self._reads:
            self._closed_meanwhile.clear()

    def offer_read(self, reading: Reading, partitions: Iterable[int]) -> Offer:
        """What a read of these lanes found: which to claim, which to park."""
        offer = self.offer(reading.messages)
        for partition in partitions:
            if partition in self._lanes and partition not in self._suspended:
                mark = self._marks[partition] = reading.cursor.low.get(partition, 0)
                self._read_to[partition] = math.inf if partition in reading.complete else mark
                for key in self._unread.pop(partition, ()):
                    self._look(key, self._lines[key])
        for key, line in [(k, line) for k, line in self._crowded.items() if self._is_ahead(line)]:
            self._uncrowd(key, line)
            self._look(key, line)
        return offer

    def _is_ahead(self, line: Line) -> bool:
        """Whether all that was left of a crowded key stands where its lane is still to be read."""
        return line.met_to is None or line.met_to >= self._marks.get(line.partition, 0)

    def offer(self, messages: Iterable[Message]) -> Offer:
        """Messages in id order, fresh or due: which to claim, which to park. Ends a read."""
        take: list[Message] = []
        park: list[Message] = []
        for message in self._news(messages):
            if message.key is None or self._joins(message, message.key, park):
                self._hold(message)
                take.append(message)
        self._end_read()
        return Offer(take, park)

    def _news(self, messages: Iterable[Message]) -> list[Message]:
        """Those that are not in hand, not just closed, and of a lane that is ours and open to news."""
        slots, closed, lanes = self._hand.slots, self._closed_meanwhile, self._lanes - self._suspended
        return [m for m in messages if m.id not in slots and m.id not in closed and m.partition in lanes]

    def _joins(self, message: Message, key: str, park: list[Message]) -> bool:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(message.partition)
        if message.waits is Waits.RETRY:
            if not self._is_next(message, line):
                self._look(key, line)
                return False
        elif line.blocked or len(line.queue) >= self._key_share or line.has_left(message.id):
            if not self._leave(message, key, line):
                line.park(message.id)
                park.append(message)
            return False
        line.join(message.id)
        return True

    def _is_next(self, message: Message, line: Line) -> bool:
        """Whether a message that came due goes before all others of its key, the unread ones too.

        What is unread may stand before it: then the front is not known any more, and the key is to be read.
        """
        if not line.comes_due(message.id):
            return False
        if message.id > self._met_to(line):
            line.front = None
            return False
        return True

    def _leave(self, message: Message, key: str, line: Line) -> bool:
        """Whether a message can stay in the table as it is: one that is fresh, of a key that is or becomes crowded."""
        if message.waits is not None or not self._leaves:
            return False
        if not line.blocked and not line.has_left(message.id):
            line.met_to = message.id - 1
            self._crowded[key] = line
        return line.has_left(message.id)

    def _met_to(self, line: Line) -> float:
        """Up to which id all fresh messages of a key were met."""
        read_to = self._read_to[line.partition]
        return read_to if line.met_to is None else min(read_to, line.met_to)

    def parked(self, messages: Iterable[Message]) -> None:
        """These parks are committed."""
        for message in messages:
            if message.key is not None and (line := self._lines.get(message.key)) is not None:
                line.parking -= 1
                self._look(message.key, line)

    # --- blocked keys ---

    def block(self, partition: int, key: str, *, front: Waits) -> None:
        """The table says that the key is blocked, and what its first waiting message waits for."""
        if partition not in self._lanes:
            return
        line = self._lines.setdefault(key, Line(partition))
        line.blocked = True
        if line.is_quiet and (front is Waits.PARKED or (front is Waits.RETRY and line.due)):
            line.front = None
            self._look(key, line)

    def wanted(self, limit: int) -> list[Wanted]:
        """Keys to read now. Each answer must come back by `offer_key`, or `fetching_failed`."""
        chosen: list[Wanted] = []
        for key in list(self._wanted):
            line = self._lines[key]
            if line.partition in self._suspended:
                continue
            del self._wanted[key]
            if not line.wants_reading:
                continue
            line.fetch()
            chosen.append(Wanted(key, line.partition, self._key_share))
            if len(chosen) == limit:
                break
        return chosen

    def fetching_failed(self, wanted: Wanted) -> None:
        """The key could not be read: it is wanted still."""
        if (line := self._lines.get(wanted.key)) is not None:
            line.fetching = False
            self._look(wanted.key, line)

    def offer_key(self, wanted: Wanted, messages: Sequence[Message]) -> Offer:
        """The waiting messages of one key, by id: those to claim, up to the first that has to wait on."""
        line = self._lines.get(wanted.key)
        if line is None:
            return Offer(())
        line.fetching = False
        take = self._takeable(wanted.key, line, messages)
        for message in take:
            line.join(message.id)
            self._hold(message)
        if len(take) == len(messages) < wanted.limit and not line.has_parked:
            line.freed()
        self._look(wanted.key, line)
        return Offer(take)

    def _takeable(self, key: str, line: Line, messages: Sequence[Message]) -> list[Message]:
        take: list[Message] = []
        if line.partition not in self._lanes or line.partition in self._suspended:
            return take
        for message in messages:
            if message.id > line.parked_from:
                break
            if line.has_left(message.id):
                line.lags = not take
                break
            if message.id > self._read_to[line.partition]:
                if not take:
                    self._unread.setdefault(line.partition, {})[key] = None
                break
            if message.waits is Waits.HELD or (message.waits is Waits.RETRY and message.id not in line.due):
                line.front = message.id
                break
            take.append(message)
        return take
