"""Claims and sending: who may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.message import Message
from pillarbox.protocols import Settlement
from pillarbox.relay.lane.hand import Slot, Stage
from pillarbox.relay.lane.line import Line
from pillarbox.relay.lane.returns import Returns

__all__ = ["LONE_STRIKES", "Sending"]

LONE_STRIKES: Final = 2
"""From this many strikes on, a message is sent alone."""

_WAITING: Final = Stage.WAITING
_READY: Final = Stage.READY
_SENT: Final = Stage.SENT


class Sending(Returns):
    """The sending side of the core."""

    def claimed(self, number: int, messages: Sequence[Message], *, strikes: int = 0) -> None:
        """The claim is committed: what stands first of its key may go.

        Something may have gone back in the meantime that must come first: then these go back too.
        """
        get, eras = self._hand.slots.get, self._era
        slots = [slot for message in messages if (slot := get(message.id)) is not None]
        if slots:
            self._hand.claimed(number, slots, strikes=strikes)
            self._give_back([slot for slot in slots if slot.era != eras.get(slot.message.partition)])
            self._admit(slots)

    def inherit(self, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        """A claim that came with its lane from a relay that died: back into the table, to be met again in its order.

        An earlier message of a key may have gone back, or wait there, while a later one was being claimed. The
        strikes stay, but of several in one claim none was alone: they cannot have more than it takes to go alone.
        """
        if len(messages) > 1:
            strikes = min(strikes, LONE_STRIKES)
        slots = []
        for message in messages:
            if message.id not in self._hand.slots:
                self._strikes[message.id] = strikes
                slots.append(self._hold(message))
                if message.key is not None:
                    self._lines.setdefault(message.key, Line(message.partition)).join(message.id)
        if slots:
            self._hand.claimed(number, slots, strikes=strikes)
            self._give_back(slots)

    def claimed_alone(self, message: Message, number: int) -> Settlement:
        """One message has a claim of its own now. Answers what takes it out of the one it was in."""
        return self._hand.reclaimed(self._hand.slots[message.id], number)

    def _admit(self, slots: Iterable[Slot]) -> None:
        lines, lanes = self._lines, self._lanes if self.is_open else set[int]()
        for slot in slots:
            if slot.stage is not _WAITING:
                continue
            message = slot.message
            if message.partition not in lanes:
                self._give_back([slot])
            elif message.key is None:
                self._choose(slot)
            else:
                line = lines[message.key]
                if line.front is not None:
                    self._set_aside(line)
                if line.current is None:
                    self._advance(line)

    def _advance(self, line: Line) -> None:
        """Let the first of a line go, if nothing of it is under way and its claim is committed."""
        if line.current is None and line.queue and not line.stopped:
            message_id = line.queue[0]
            slot = self._hand.slots[message_id]
            if slot.claim and (line.front is None or line.may_go(message_id)):
                del line.queue[0]
                line.current = message_id
                self._choose(slot)

    def _choose(self, slot: Slot) -> None:
        slot.stage = _READY
        (self._ready if slot.strikes < LONE_STRIKES else self._lone).append(slot)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_lone(self) -> bool:
        return bool(self._lone)

    def batch(self, limit: int) -> list[Message]:
        """Messages to send now, each of another key."""
        batch: list[Message] = []
        ready, slots = self._ready, self._hand.slots
        while ready and len(batch) < limit:
            slot = ready.popleft()
            if slot.stage is _READY and slots.get(slot.message.id) is slot:
                slot.stage = _SENT
                batch.append(slot.message)
        return batch

    def lone(self) -> Message | None:
        """A message to send alone, on a connection of its own."""
        while self._lone:
            slot = self._lone.popleft()
            if slot.stage is _READY and self._hand.slots.get(slot.message.id) is slot:
                slot.stage = _SENT
                return slot.message
        return None
