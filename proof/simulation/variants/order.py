"""Broken ordering: who of a key may go, and what waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pillarbox.contracts.store import BlockedKey, Cursor, FailedOutcome, Lane, RecoveredClaim
from pillarbox.message import Message, Waits
from pillarbox.relay.in_flight import KeyQueue
from pillarbox.relay.ordering import LaneOrdering
from pillarbox.relay.pipeline import Pipeline
from proof.simulation.checker import Promise
from proof.simulation.variants.variant import Changes, Replace

__all__ = ["ORDER"]


def parking_forgotten(replace: Replace) -> None:
    """A later message of a blocked key is taken when it is met."""
    original_enqueue = LaneOrdering._enqueue

    def enqueue(ordering: LaneOrdering, message: Message, key: str, park: list[Message]) -> bool:
        if message.waits is Waits.RETRY:
            return original_enqueue(ordering, message, key, park)
        ordering._keys.setdefault(key, KeyQueue(message.partition)).add(message)
        return True

    replace(LaneOrdering, "_enqueue", enqueue)


def blocked_keys_not_loaded(replace: Replace) -> None:
    """A lane that was taken over is read before its blocked keys are known."""
    original_grant = Pipeline.grant

    def grant(
        pipeline: Pipeline, lanes: Iterable[Lane], inherited: Sequence[RecoveredClaim], blocked: Iterable[BlockedKey]
    ) -> None:
        original_grant(pipeline, lanes, inherited, ())

    replace(Pipeline, "grant", grant)


def next_before_the_failure_is_settled(replace: Replace) -> None:
    """The next of a key goes as soon as the one before it has failed, before that is recorded."""
    original_mark_failed = LaneOrdering.mark_failed

    def mark_failed(ordering: LaneOrdering, message: Message, failure: FailedOutcome) -> None:
        original_mark_failed(ordering, message, failure)
        if message.key is not None and (queue := ordering._keys.get(message.key)) is not None:
            queue.stopped = False
            ordering._advance(queue)

    replace(LaneOrdering, "mark_failed", mark_failed)


def two_of_a_key_at_once(replace: Replace) -> None:
    """The next of a key does not wait for the answer to the one before it."""

    original_remove = KeyQueue.remove

    def advance(ordering: LaneOrdering, queue: KeyQueue) -> None:
        while queue.behind and not queue.stopped:
            entry = ordering._in_flight.entries[queue.behind[0]]
            if not entry.claim or not queue.may_send(entry.message.id):
                return
            queue.current = queue.behind.pop(0)
            ordering._make_ready(entry)

    def remove(queue: KeyQueue, message: Message) -> None:
        if queue.current != message.id and message.id not in queue.behind:
            queue.behind.append(message.id)  # one of several that are being sent
        original_remove(queue, message)

    replace(LaneOrdering, "_advance", advance)
    replace(KeyQueue, "remove", remove)


def held_key_goes_on(replace: Replace) -> None:
    """A held message does not hold its key."""
    original_mark_failed = LaneOrdering.mark_failed

    def mark_failed(ordering: LaneOrdering, message: Message, failure: FailedOutcome) -> None:
        original_mark_failed(ordering, message, failure)
        if failure.waits is Waits.HELD and message.key is not None:
            queue = ordering._keys[message.key]
            queue.blocked, queue.front, queue.stopped = False, None, False

    replace(LaneOrdering, "mark_failed", mark_failed)


def lane_not_suspended(replace: Replace) -> None:
    """After something went back into a lane, news of it is taken before it is read from its start."""
    replace(LaneOrdering, "_suspend", lambda ordering, partition: None)


def never_read_again(replace: Replace) -> None:
    """What went back is below the mark, and the mark stays."""
    replace(Cursor, "restart", lambda cursor, partitions, *, whole=(): cursor)


def head_closed_unnoticed(replace: Replace) -> None:
    """When the head of a key closes, what was parked behind it is not read."""
    original_review = LaneOrdering._review

    def review(ordering: LaneOrdering, key: str, queue: KeyQueue) -> None:
        if not queue.needs_read:
            original_review(ordering, key, queue)

    replace(LaneOrdering, "_review", review)


def older_claim_sent(replace: Replace) -> None:
    """A claim that commits after something went back into its lane is sent, before what went back."""

    def confirm_claim(ordering: LaneOrdering, number: int, messages: Sequence[Message], *, strikes: int = 0) -> None:
        entries = [entry for message in messages if (entry := ordering._in_flight.entries.get(message.id)) is not None]
        if entries:
            ordering._in_flight.assign_claim(number, entries, strikes=strikes)
            ordering._admit(entries)

    replace(LaneOrdering, "confirm_claim", confirm_claim)


def rest_of_a_hot_key_forgotten(replace: Replace) -> None:
    """What was left in the table of a key that is too hot to hold is never fetched."""
    replace(LaneOrdering, "next_remainders", lambda ordering, limit: [])


def front_gone_unnoticed(replace: Replace) -> None:
    """A person closed what stood in front of a hot key, and its relay waits for it on."""
    replace(LaneOrdering, "recheck_hot_keys", lambda ordering, blocked: None)


ORDER: Changes = {
    parking_forgotten: (Promise.OUT_OF_ORDER,),
    blocked_keys_not_loaded: (Promise.OUT_OF_ORDER,),
    next_before_the_failure_is_settled: (Promise.OUT_OF_ORDER,),
    two_of_a_key_at_once: (Promise.OUT_OF_ORDER,),
    held_key_goes_on: (Promise.OUT_OF_ORDER,),
    lane_not_suspended: (Promise.OUT_OF_ORDER,),
    never_read_again: (Promise.STUCK,),
    head_closed_unnoticed: (Promise.STUCK,),
    older_claim_sent: (Promise.OUT_OF_ORDER,),
    rest_of_a_hot_key_forgotten: (Promise.STUCK,),
    front_gone_unnoticed: (Promise.STUCK,),
}
