"""The ordering core: rows in, outcomes in; what to claim, park, send and settle out. No I/O, no clock.

One `LaneCore` serves all the lanes that a relay owns of one destination. The order it keeps: of each key one message
is under way at a time, in id order, and nothing of a key passes a message of it that waits in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.message import Message, Waits
from pillarbox.protocols import Settlement, Trouble
from pillarbox.relay.lane.hand import Slot, Stage
from pillarbox.relay.lane.sending import Sending

__all__ = ["LaneCore"]

_SENT: Final = Stage.SENT
_DONE: Final = Stage.DONE


class LaneCore(Sending):
    """Order, parking and bookkeeping for one destination's lanes in one relay."""

    # --- lanes ---

    def grant(self, partition: int) -> None:
        """Own a lane. What was inherited with it and its blocked keys must be told before its first read."""
        self._lanes.add(partition)
        self._restart.add(partition)
        self._suspended.add(partition)
        self._era[partition] = self._era.get(partition, 0) + 1
        self._read_to[partition] = 0

    def revoke(self, partition: int) -> None:
        """Read a lane no more: what is unsent goes back, what is under way may finish."""
        self._lanes.discard(partition)
        self._give_back(self._hand.of_lane(partition))
        for key in [key for key, line in self._lines.items() if line.partition == partition and line.is_quiet]:
            del self._lines[key]
        self._forget({partition})

    def drop(self, partitions: Iterable[int]) -> None:
        """Another relay owns these lanes: forget everything in them; nothing there may be settled."""
        gone = set(partitions)
        self._lanes -= gone
        self._hand.drop(lambda message: message.partition in gone)
        for key in [key for key, line in self._lines.items() if line.partition in gone]:
            del self._lines[key]
        self._forget(gone)

    # --- outcomes ---

    def delivered(self, messages: Iterable[Message]) -> None:
        """Acknowledged: to be recorded, and the key's next goes at once."""
        slots, lines, strikes, done = self._hand.slots, self._lines, self._strikes, []
        for message in messages:
            message_id = message.id
            slot = slots.get(message_id)
            if slot is None or slot.stage is not _SENT:
                continue
            slot.stage = _DONE
            done.append(message_id)
            if strikes:
                strikes.pop(message_id, None)
            if message.key is not None:
                line = lines[message.key]
                line.leave(message_id)
                if line.queue:
                    self._advance(line)
        self._hand.delivered(done)

    def troubled(self, message: Message, trouble: Trouble) -> None:
        """Not delivered: it closes or waits. Nothing else of its key goes before that is recorded."""
        slot = self._hand.slots.get(message.id)
        if slot is None or slot.stage is not Stage.SENT:
            return
        self._strikes.pop(message.id, None)
        self._hand.trouble(slot, trouble)
        if message.key is None:
            return
        line = self._lines[message.key]
        line.leave(message.id)
        line.stopped = True
        if trouble.waits is not None:
            line.blocked, line.front = True, message.id
            self._set_aside(line)

    # --- settling ---

    @property
    def has_outcomes(self) -> bool:
        return self._hand.has_outcomes

    def settlement(self, limit: int) -> tuple[Settlement, set[int]]:
        """The next outcomes to record, and the lanes they are in. Comes back by `settled` or `unsettled`."""
        return self._hand.settlement(limit)

    def unsettled(self, settlement: Settlement) -> None:
        """It could not be recorded: to be tried again."""
        self._hand.unsettled(settlement)

    def settled(self, settlement: Settlement) -> None:
        """It is recorded, durably where it must be: stopped keys go on, what went back can be read again."""
        self._release_delivered(settlement.delivered)
        for message_id in settlement.returned:
            if (slot := self._release(message_id)) is not None:
                self._is_back(slot.message.partition)
        for trouble in settlement.troubles:
            self._release(trouble.message_id, goes_on=trouble.waits is not Waits.PARKED)

    def _release_delivered(self, message_ids: Sequence[int]) -> None:
        """As `_release`, for very many: a key that has nothing more to do is forgotten in passing."""
        lines, slots = self._lines, self._hand.release_all(message_ids)
        if self._reads:
            self._closed_meanwhile.update(message_ids)
        for slot in slots:
            key = slot.message.key
            if key is not None and (line := lines.get(key)) is not None:
                line.unsettled -= 1
                if not line.unsettled and line.current is None:
                    self._look(key, line)

    def _release(self, message_id: int, *, goes_on: bool = False) -> Slot | None:
        slot = self._hand.release(message_id)
        if slot is None:
            return None
        if self._reads:
            self._closed_meanwhile.add(message_id)
        if (key := slot.message.key) is not None and (line := self._lines.get(key)) is not None:
            line.unsettled -= 1
            if goes_on:
                line.stopped = False
                self._advance(line)
            if not line.unsettled and line.current is None:
                self._look(key, line)
        return slot

    def _is_back(self, partition: int) -> None:
        if (left := self._returning.get(partition, 0) - 1) > 0:
            self._returning[partition] = left
        else:
            self._returning.pop(partition, None)
        if partition in self._lanes:
            self._restart.add(partition)
