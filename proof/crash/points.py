"""The kill points of the crash matrix: where a process dies, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from types import MappingProxyType
from typing import Final

from proof.kill_points import KillPointBase

__all__ = ["REQUIRED", "KillPoint"]


@unique
class KillPoint(KillPointBase):
    """Where a process dies. After every one of them, nothing is lost, invented or out of order."""

    # joining, and owning lanes
    JOIN_CALLED = (
        "before it enters the registry",
        "nobody has seen it; the next relay delivers",
    )
    JOIN_UNCOMMITTED = (
        "with its row in the registry written and not committed",
        "the row is gone with the transaction; the next relay delivers",
    )
    JOINED = (
        "in the registry, with no lane yet",
        "half of the lanes are kept free for it until its lease ends, then the next relay takes them too",
    )
    TAKE_CALLED = (
        "before it takes its first lanes",
        "the lanes are free; its share of them is kept for it until its lease ends",
    )
    TAKE_HALFWAY = (
        "in the transaction that takes lanes, with the new owner written",
        "the lanes are as free as they were; its share of them is kept for it until its lease ends",
    )
    TAKE_UNCOMMITTED = (
        "with the lanes taken and not committed",
        "the lanes are as free as they were; its share of them is kept for it until its lease ends",
    )
    TAKEN = (
        "owning lanes it has not heard of yet",
        "they are taken over when its lease ends",
    )
    INHERIT_HALFWAY = (
        "taking over from a dead relay, with the dead one's claims half moved",
        "the claims are the first dead relay's still, and the third one inherits them whole",
    )
    INHERIT_UNCOMMITTED = (
        "taking over from a dead relay, all of it written and not committed",
        "the claims are the first dead relay's still, and the third one inherits them whole",
    )
    INHERITED = (
        "right after it took over from a dead relay",
        "the claims are the second dead relay's, and the third one inherits them",
    )
    RENEW_CALLED = (
        "before a renewal of its lease",
        "the lease ends a little earlier, and the lanes are taken over",
    )
    RENEW_UNCOMMITTED = (
        "with the renewal written and not committed",
        "the lease ends as if it had not been renewed",
    )
    RENEWED = (
        "right after a renewal",
        "the lanes are taken over one whole lease later",
    )
    RELEASE_CALLED = (
        "about to hand surplus lanes over",
        "the newcomer gets them when the lease ends, with the rest",
    )
    RELEASE_HALFWAY = (
        "handing lanes over, with the owner cleared and its claims in them still there",
        "the lanes are its own still, and are taken over with the claims when the lease ends",
    )
    RELEASE_UNCOMMITTED = (
        "with the hand-over written and not committed",
        "the lanes are its own still, and are taken over when the lease ends",
    )
    RELEASED = (
        "right after it handed lanes over",
        "the newcomer serves those at once, and takes the rest over when the lease ends",
    )
    FORGET_UNCOMMITTED = (
        "forgetting a relay that died long ago, not committed",
        "the next relay forgets it",
    )

    # reading and claiming
    READ_CALLED = (
        "before a read",
        "nothing was in its hands that the claims do not name",
    )
    READ = (
        "with messages read and not claimed",
        "reading changes nothing: the next relay reads them again, and none of them is repeated",
    )
    CLAIM_CALLED = (
        "before it claims what it read",
        "nothing is sent before it is claimed, so nothing of it is repeated",
    )
    CLAIM_UNCOMMITTED = (
        "with a claim written and not committed",
        "the claim is gone with the transaction; nothing of it was sent",
    )
    CLAIMED = (
        "with a claim committed, before any message of it was sent",
        "the next relay inherits the claim and sends all of it",
    )
    PARK_UNCOMMITTED = (
        "with messages parked behind a retry of their key, not committed",
        "they stay where they were, and the next relay parks them again: none passes the head of its key",
    )
    PARKED = (
        "right after it parked messages behind a retry of their key",
        "the next relay finds the key blocked, and goes on with it in order",
    )

    # sending
    SEND_CALLED = (
        "about to send a claimed message",
        "the next relay sends it",
    )
    SOME_SENT = (
        "with ten messages claimed and six of them answered, none recorded",
        "exactly those six are repeated, and the other four are sent once",
    )
    SOME_SETTLED = (
        "with ten messages claimed and six of them recorded as delivered, four not sent",
        "nothing is repeated, and the other four are sent once",
    )
    UNANSWERED = (
        "with the request sent and taken, and its answer not read",
        "not known is not delivered: the message is repeated",
    )
    ANSWERED = (
        "with the answer read, before the relay has heard it",
        "what was not recorded is repeated",
    )

    # recording what was delivered
    SETTLE_CALLED = (
        "before it records deliveries",
        "what was not recorded is repeated",
    )
    SETTLE_HALFWAY = (
        "recording deliveries, after the first statement",
        "a settlement is whole or not there: what was not recorded is repeated",
    )
    SETTLE_UNCOMMITTED = (
        "with deliveries recorded and not committed",
        "a settlement is whole or not there: what was not recorded is repeated",
    )
    SETTLED = (
        "with deliveries committed, before the relay knows",
        "what is recorded is not sent again; only what was under way beside it may be",
    )

    # recording what was not
    RETRY_CALLED = (
        "before it records a failed attempt",
        "the attempt is not spent, and the message is sent again before the others of its key",
    )
    RETRY_HALFWAY = (
        "recording a failed attempt, with half of the settlement written",
        "the attempt is not spent, and the message is sent again before the others of its key",
    )
    RETRY_UNCOMMITTED = (
        "with a failed attempt recorded and not committed",
        "the attempt is not spent, and the message is sent again before the others of its key",
    )
    RETRY_RECORDED = (
        "right after a failed attempt was recorded",
        "one attempt is spent; the next relay finds the key blocked, and lets it wait for its time",
    )
    RETRY_DUE = (
        "with a message read whose next attempt is due",
        "the next relay finds it due, and no attempt is spent by the death",
    )
    RETRY_ANSWERED = (
        "with the second attempt taken, before the relay has heard it",
        "the message is repeated, and no attempt is spent by the death",
    )
    FREED = (
        "with the parked messages of a key read, after their head was delivered",
        "the next relay reads them again, in order",
    )
    FAIL_CALLED = (
        "before it closes a message that was refused for good",
        "it is sent again, refused again, and closed as failed; its key goes on only then",
    )
    FAIL_UNCOMMITTED = (
        "with a message closed as failed and not committed",
        "it is sent again, refused again, and closed as failed; its key goes on only then",
    )
    FAILED = (
        "right after it closed a message as failed",
        "it is not sent again, and its key goes on",
    )
    HOLD_UNCOMMITTED = (
        "with a refused message held and not committed (`after_failure = hold`)",
        "it is sent again, refused again, and held; nothing of its key passes it",
    )
    HELD = (
        "right after it held a refused message (`after_failure = hold`)",
        "the next relay finds the key held: nothing of it goes before a person has redriven the head",
    )
    FORWARD_UNCOMMITTED = (
        "forwarding a failed message to its dead-letter destination, not committed",
        "it is sent again, refused again, and forwarded; its key goes on only then",
    )
    FORWARDED = (
        "right after it forwarded a failed message to its dead-letter destination",
        "it waits there, and the next relay delivers it there, once",
    )
    SKIP_UNCOMMITTED = (
        "with an unrouted message closed as skipped and not committed",
        "the next relay closes it as skipped",
    )
    SKIPPED = (
        "right after it closed an unrouted message as skipped",
        "it is skipped, once",
    )

    # outages and poison
    GIVE_BACK_CALLED = (
        "with the destination down, before it gives its messages back",
        "they are taken over; the outage spends no attempt",
    )
    GIVE_BACK_UNCOMMITTED = (
        "with messages given back to the table and not committed",
        "they are taken over; the outage spends no attempt",
    )
    GIVEN_BACK = (
        "right after it gave messages back",
        "they are read in their order; the outage spends no attempt",
    )
    PROBED = (
        "asking whether the destination is back, with the answer not yet heard",
        "the next relay finds out by itself; the outage spends no attempt",
    )
    LONE_CLAIMED = (
        "after two deaths, with a message in a claim of its own and in the old claim too",
        "it is in one claim again, counted once, and sent alone; no attempt is spent",
    )
    POISON = (
        "sending one certain message, every relay, until they give it up",
        "after the last death allowed it is failed with that reason; its neighbours are delivered and pay nothing",
    )

    # leaving
    LEAVE_CALLED = (
        "stopping gracefully, before it leaves",
        "what it had in hand is recorded; the lanes are taken over when the lease ends",
    )
    LEAVE_UNCOMMITTED = (
        "stopping gracefully, with its leave written and not committed",
        "the lanes are its own still, and are taken over when the lease ends",
    )
    LEFT = (
        "stopping gracefully, right after it left",
        "the lanes are free at once",
    )

    # cleaning
    PURGE_CALLED = (
        "with deliveries recorded, before they are cleaned away",
        "what is recorded is not sent again, and the next relay cleans it away",
    )
    PURGE_UNCOMMITTED = (
        "with delivered messages cleaned away and not committed",
        "they are in the history still, and the next relay cleans them away",
    )
    PURGED = (
        "right after delivered messages were cleaned away",
        "they are gone, and are not sent again",
    )
    ARCHIVED = (
        "with messages in the archive, before they are deleted",
        "they are archived once more; nothing is deleted that the archive does not have",
    )

    # the others who write
    WRITE_HALFWAY = (
        "a writer, with its business row written and its message not yet",
        "neither of them exists",
    )
    WRITE_UNCOMMITTED = (
        "a writer, with business row and message written and not committed",
        "neither of them exists, and nothing is delivered",
    )
    WRITTEN = (
        "a writer, right after its commit",
        "both of them exist, and the message is delivered",
    )
    REDRIVE_UNCOMMITTED = (
        "an operator's redrive, in its second batch, not committed",
        "the first batch goes again and the second is failed still; repeating the command finishes it",
    )
    REDRIVEN = (
        "an operator's redrive, right after its second batch",
        "two batches go again and the rest is failed still; repeating the command finishes it",
    )
    DISCARD_UNCOMMITTED = (
        "an operator's discard, in its second batch, not committed",
        "the first batch is discarded and the second failed still; repeating the command finishes it",
    )


REQUIRED: Final[Mapping[str, KillPoint]] = MappingProxyType(
    {
        "before any publish": KillPoint.CLAIMED,
        "after some publishes (ten claimed, six published)": KillPoint.SOME_SENT,
        "during settle": KillPoint.SETTLE_HALFWAY,
        "after settle, before cleanup": KillPoint.PURGE_CALLED,
        "during the broker call": KillPoint.UNANSWERED,
    }
)
"""The crash points that every outbox is asked about, and the one that shows each."""
