"""Broken cores: who of a key may go, and what waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pillarbox.message import Message, Waits
from pillarbox.protocols import BlockedKey, Cursor, Inherited, Lane, Trouble
from pillarbox.relay.lane import LaneCore
from pillarbox.relay.lane.crowds import Crowds
from pillarbox.relay.lane.line import Line
from pillarbox.relay.lane.returns import Returns
from pillarbox.relay.lane.rows import Rows
from pillarbox.relay.lane.sending import Sending
from pillarbox.relay.pipeline import Pipeline
from simulation.variants.variant import Switch

__all__ = ["ORDER"]


def parking_forgotten(switch: Switch) -> None:
    """A later message of a blocked key is taken when it is met."""
    joins_as_it_was = Rows._joins

    def joins(core: LaneCore, message: Message, key: str, park: list[Message]) -> bool:
        if message.waits is Waits.RETRY:
            return joins_as_it_was(core, message, key, park)
        core._lines.setdefault(key, Line(message.partition)).join(message.id)
        return True

    switch(Rows, "_joins", joins)


def blocked_keys_not_loaded(switch: Switch) -> None:
    """A lane that was taken over is read before its blocked keys are known."""
    grant_as_it_was = Pipeline.grant

    def grant(
        pipeline: Pipeline, lanes: Iterable[Lane], inherited: Sequence[Inherited], blocked: Iterable[BlockedKey]
    ) -> None:
        grant_as_it_was(pipeline, lanes, inherited, ())

    switch(Pipeline, "grant", grant)


def next_before_the_failure_is_settled(switch: Switch) -> None:
    """The next of a key goes as soon as the one before it has failed, before that is recorded."""
    troubled_as_it_was = LaneCore.troubled

    def troubled(core: LaneCore, message: Message, trouble: Trouble) -> None:
        troubled_as_it_was(core, message, trouble)
        if message.key is not None and (line := core._lines.get(message.key)) is not None:
            line.stopped = False
            core._advance(line)

    switch(LaneCore, "troubled", troubled)


def two_of_a_key_at_once(switch: Switch) -> None:
    """The next of a key does not wait for the answer to the one before it."""

    def advance(core: LaneCore, line: Line) -> None:
        while line.queue and not line.stopped:
            slot = core._hand.slots[line.queue[0]]
            if not slot.claim or not line.may_go(slot.message.id):
                return
            line.current = line.queue.pop(0)
            core._choose(slot)

    def leave(line: Line, message_id: int) -> None:
        line.unsettled += 1
        if message_id in line.queue:
            line.queue.remove(message_id)
        elif line.current == message_id:
            line.current = None

    switch(Sending, "_advance", advance)
    switch(Line, "leave", leave)


def held_key_goes_on(switch: Switch) -> None:
    """A held message does not hold its key."""
    troubled_as_it_was = LaneCore.troubled

    def troubled(core: LaneCore, message: Message, trouble: Trouble) -> None:
        troubled_as_it_was(core, message, trouble)
        if trouble.waits is Waits.HELD and message.key is not None:
            line = core._lines[message.key]
            line.blocked, line.front, line.stopped = False, None, False

    switch(LaneCore, "troubled", troubled)


def lane_not_suspended(switch: Switch) -> None:
    """After something went back into a lane, news of it is taken before it is read from its start."""
    switch(Returns, "_suspend", lambda core, partition: None)


def never_read_again(switch: Switch) -> None:
    """What went back is below the mark, and the mark stays."""
    switch(Cursor, "restarted", lambda cursor, partitions: cursor)


def head_closed_unnoticed(switch: Switch) -> None:
    """When the head of a key closes, what was parked behind it is not read."""
    look_as_it_was = Rows._look

    def look(core: LaneCore, key: str, line: Line) -> None:
        if not line.wants_reading:
            look_as_it_was(core, key, line)

    switch(Rows, "_look", look)


def older_claim_sent(switch: Switch) -> None:
    """A claim that commits after something went back into its lane is sent, before what went back."""

    def claimed(core: LaneCore, number: int, messages: Sequence[Message], *, strikes: int = 0) -> None:
        slots = [slot for message in messages if (slot := core._hand.slots.get(message.id)) is not None]
        if slots:
            core._hand.claimed(number, slots, strikes=strikes)
            core._admit(slots)

    switch(Sending, "claimed", claimed)


def rest_of_a_hot_key_forgotten(switch: Switch) -> None:
    """What was left in the table of a key that is too hot to hold is never fetched."""
    switch(Crowds, "left", lambda core, limit: [])


def front_gone_unnoticed(switch: Switch) -> None:
    """A person closed what stood in front of a hot key, and its relay waits for it on."""
    switch(Crowds, "look_again", lambda core, blocked: None)


ORDER = (
    parking_forgotten,
    blocked_keys_not_loaded,
    next_before_the_failure_is_settled,
    two_of_a_key_at_once,
    held_key_goes_on,
    lane_not_suspended,
    never_read_again,
    head_closed_unnoticed,
    older_claim_sent,
    rest_of_a_hot_key_forgotten,
    front_gone_unnoticed,
)
