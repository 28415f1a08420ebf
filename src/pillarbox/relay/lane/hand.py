"""What a relay has in hand of one destination: messages, their claims, and the outcomes not yet recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum

import msgspec

from pillarbox.message import Message
from pillarbox.protocols import Settlement, Trouble

__all__ = ["Hand", "Slot", "Stage"]


class Stage(IntEnum):
    """How far a message in hand has come."""

    WAITING = 0
    READY = 1
    SENT = 2
    DONE = 3
    """Its outcome is known and not yet recorded."""


class Slot(msgspec.Struct, gc=False):
    """A message in hand."""

    message: Message
    claim: int = 0
    """0 until its claim is committed."""
    strikes: int = 0
    era: int = 0
    """Which reading of its lane, from the start, it came from."""
    stage: Stage = Stage.WAITING


class Hand:
    """Messages by id, claims by number, outcomes in the order they came."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self._left: dict[int, int] = {}
        """Claim to how many of its messages are still in hand."""
        self._delivered: list[int] = []
        self._troubles: list[Trouble] = []
        self._returned: list[int] = []

    def claimed(self, number: int, slots: Collection[Slot], *, strikes: int) -> None:
        """These messages are recorded as ours under one claim."""
        self._left[number] = len(slots)
        for slot in slots:
            slot.claim = number
        for slot in slots if strikes else ():
            slot.strikes = max(slot.strikes, strikes)

    def reclaimed(self, slot: Slot, number: int) -> Settlement:
        """One message has a claim of its own now. Answers what takes it out of the one it was in."""
        before, slot.claim = slot.claim, number
        self._left[number] = 1
        left = self._left[before] = self._left[before] - 1
        if not left:
            del self._left[before]
        numbers = [before]
        return Settlement(returned=[slot.message.id], finished=[] if left else numbers, touched=numbers if left else [])

    def delivered(self, message_ids: Iterable[int]) -> None:
        """They were acknowledged."""
        self._delivered.extend(message_ids)

    def trouble(self, slot: Slot, trouble: Trouble) -> None:
        """It closes otherwise, or waits."""
        slot.stage = Stage.DONE
        self._troubles.append(trouble)

    def put_back(self, slot: Slot) -> None:
        """It leaves the hand as it came."""
        slot.stage = Stage.DONE
        self._returned.append(slot.message.id)

    @property
    def has_outcomes(self) -> bool:
        return bool(self._delivered or self._troubles or self._returned)

    @property
    def outcomes(self) -> int:
        """How many outcomes wait to be recorded."""
        return len(self._delivered) + len(self._troubles) + len(self._returned)

    def settlement(self, limit: int) -> tuple[Settlement, set[int]]:
        """The next outcomes to record, and the lanes they are in. Deliveries up to the limit; all the rest."""
        delivered, self._delivered = self._delivered[:limit], self._delivered[limit:]
        troubles, self._troubles = self._troubles, []
        returned, self._returned = self._returned, []
        slots = [self.slots[i] for i in (*delivered, *(trouble.message_id for trouble in troubles), *returned)]
        leaving = Counter([slot.claim for slot in slots])
        lanes = {slot.message.partition for slot in slots}
        finished = [number for number, count in leaving.items() if count >= self._left[number]]
        touched = [number for number, count in leaving.items() if count < self._left[number]]
        settlement = Settlement(
            delivered=delivered, troubles=troubles, returned=returned, finished=finished, touched=touched
        )
        return settlement, lanes

    def unsettled(self, settlement: Settlement) -> None:
        """It could not be recorded: its outcomes wait again, before all others."""
        self._delivered = [i for i in settlement.delivered if i in self.slots] + self._delivered
        self._troubles = [t for t in settlement.troubles if t.message_id in self.slots] + self._troubles
        self._returned = [i for i in settlement.returned if i in self.slots] + self._returned

    def release(self, message_id: int) -> Slot | None:
        """Out of the hand: recorded, or another relay's now."""
        slot = self.slots.pop(message_id, None)
        if slot is not None and slot.claim:
            left = self._left[slot.claim] = self._left[slot.claim] - 1
            if not left:
                del self._left[slot.claim]
        return slot

    def release_all(self, message_ids: Iterable[int]) -> list[Slot]:
        """All of them out of the hand; those that were in it."""
        pop = self.slots.pop
        slots = [slot for message_id in message_ids if (slot := pop(message_id, None)) is not None]
        for number, count in Counter([slot.claim for slot in slots]).items():
            if number:
                self._left[number] -= count
                if not self._left[number]:
                    del self._left[number]
        return slots

    def drop(self, chosen: Callable[[Message], bool]) -> None:
        """Forget messages that another relay owns, with their outcomes."""
        gone = {message_id for message_id, slot in self.slots.items() if chosen(slot.message)}
        self._delivered = [i for i in self._delivered if i not in gone]
        self._returned = [i for i in self._returned if i not in gone]
        self._troubles = [t for t in self._troubles if t.message_id not in gone]
        for message_id in gone:
            self.release(message_id)

    def of_lane(self, partition: int) -> Iterable[Slot]:
        return [slot for slot in self.slots.values() if slot.message.partition == partition]
