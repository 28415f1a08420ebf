"""What leaves the hand without an answer of its own: given back, or put aside behind a message that waits."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Trouble
from pillarbox.relay.lane.crowds import Crowds
from pillarbox.relay.lane.hand import Slot, Stage
from pillarbox.relay.lane.line import Line

__all__ = ["Returns"]


class Returns(Crowds):
    """The returning side of the core."""

    def returned(self, messages: Iterable[Message]) -> None:
        """Not delivered through no fault of their own: back as they came, with what stands behind them."""
        for message in messages:
            slot = self._hand.slots.get(message.id)
            if slot is not None and slot.stage is Stage.SENT:
                slot.stage = Stage.READY
                self._give_back([slot])

    def struck(self, messages: Iterable[Message]) -> None:
        """A connection broke with these under way. The count stays when they are given back."""
        for message in messages:
            if (slot := self._hand.slots.get(message.id)) is not None:
                slot.strikes += 1
                self._strikes[message.id] = slot.strikes

    def close(self) -> None:
        """The destination is down or paused: give back all that is not under way, take nothing more."""
        self.is_open = False
        self._give_back(list(self._hand.slots.values()))

    def reopen(self) -> None:
        """It answers again: every lane is read from its start."""
        self.is_open = True
        self._restart |= self._lanes

    def drop_unanswered(self) -> None:
        """Nobody waits for the answers that are still to come: what is under way stays for another relay."""
        for slot in list(self._hand.slots.values()):
            if slot.stage is not Stage.DONE:
                self._hand.release(slot.message.id)
                if slot.message.key is not None:
                    self._lines[slot.message.key].forget(slot.message.id)

    def _give_back(self, slots: Iterable[Slot]) -> None:
        """Return what is claimed and not under way, and with a message of a key all that stands in its line."""
        for slot in slots:
            if slot.claim and slot.stage <= Stage.READY:
                line = None if slot.message.key is None else self._lines[slot.message.key]
                self._give_back_one(slot, line)
                if line is not None:
                    self._give_back_queue(line)

    def _give_back_queue(self, line: Line) -> None:
        for slot in [self._hand.slots[message_id] for message_id in line.queue]:
            if slot.claim:
                self._give_back_one(slot, line)

    def _give_back_one(self, slot: Slot, line: Line | None) -> None:
        if line is not None:
            line.leave(slot.message.id)
            if slot.message.waits in (Waits.PARKED, Waits.RETRY):
                line.blocked, line.front = True, None
        self._put_back(slot)
        self._suspend(slot.message.partition)

    def _put_back(self, slot: Slot) -> None:
        self._hand.put_back(slot)
        self._returning[slot.message.partition] = self._returning.get(slot.message.partition, 0) + 1

    def _suspend(self, partition: int) -> None:
        if partition in self._lanes and partition not in self._suspended:
            self._suspended.add(partition)
            self._era[partition] += 1

    def _set_aside(self, line: Line) -> None:
        """What stands behind a message that waits in the table: parked with it, as if it had been met only now."""
        for message_id in [i for i in line.queue if not line.may_go(i)]:
            slot = self._hand.slots[message_id]
            if not slot.claim:
                continue
            line.leave(message_id)
            if slot.message.waits in (Waits.PARKED, Waits.RETRY):
                self._put_back(slot)
            else:
                self._hand.trouble(slot, _parking(slot.message))


def _parking(message: Message) -> Trouble:
    return Trouble(message_id=message.id, state=State.PENDING, waits=Waits.PARKED, attempts=message.attempts)
