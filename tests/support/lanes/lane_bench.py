"""The shortest way through each step of the ordering core, for tests of one rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Cursor,
    DueMessage,
    FailedOutcome,
    KeyMessages,
    ReadResult,
    Settlement,
)
from pillarbox.message import Message, State, Waits
from pillarbox.relay.ordering import KeyRead, LaneOrdering, ReadDecision

__all__ = ["Bench", "build_due", "failed", "held", "ids", "non_empty", "retry"]


class Bench:
    """A core that owns some lanes, whose store answers at once."""

    def __init__(
        self,
        *,
        lanes: Iterable[int] = (0,),
        window: int = 100,
        key_share: int = 10,
        window_bytes: int = NO_BYTE_LIMIT,
        skips_keys: bool = False,
    ) -> None:
        self.ordering = LaneOrdering(
            window=window, key_share=key_share, window_bytes=window_bytes, skips_keys=skips_keys
        )
        self._number = 0
        for lane in lanes:
            self.ordering.grant(lane)

    def read(self, *messages: Message) -> ReadDecision:
        """A read of every lane, to its end, that found these."""
        partitions, _ = self.ordering.begin_read()
        low: dict[int, int] = {}
        for message in messages:
            low[message.partition] = message.id
        return self.ordering.accept_read(ReadResult(messages, Cursor(low), frozenset(partitions)), partitions)

    def due(self, *messages: Message) -> ReadDecision:
        """A read of due messages that found these."""
        self.ordering.begin_due_read()
        chosen, _ = self.ordering.choose_due([build_due(message) for message in messages])
        return self.ordering.accept([message for message in messages if message.id in chosen])

    def key_read(self) -> KeyRead:
        """The one key that is to be read."""
        (read,) = self.ordering.next_key_reads(10)
        return read

    def accept_key(self, read: KeyRead, messages: Sequence[Message]) -> ReadDecision:
        """A read of one key that found these: all there are, unless its share is full."""
        complete = len(messages) < self.ordering.key_share
        return self.ordering.accept_key(read, KeyMessages(messages, complete=complete))

    def claim(self, offer: ReadDecision) -> int:
        """Have it recorded."""
        self._number += 1
        self.ordering.confirm_parks(offer.park)
        self.ordering.confirm_claim(self._number, offer.take)
        return self._number

    def take(self, *messages: Message) -> ReadDecision:
        """Read and claim."""
        offer = self.read(*messages)
        self.claim(offer)
        return offer

    def send(self, limit: int = 100) -> list[int]:
        """What goes now."""
        return ids(self.ordering.next_batch(limit))

    def settle(self) -> Settlement:
        """Have every outcome recorded."""
        settlement, _ = self.ordering.next_settlement(100)
        self.ordering.confirm_settlement(settlement)
        return settlement


def build_due(message: Message) -> DueMessage:
    """What is found of a message that is due."""
    assert message.waits is not None
    return DueMessage(
        message.id, message.partition, message.key, message.waits, message.available_at, len(message.payload)
    )


def ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


def failed(message: Message) -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.FAILED, attempts=1)


def held(message: Message) -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=1)


def retry(message: Message) -> FailedOutcome:
    return FailedOutcome(
        message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=1, delay=timedelta(seconds=1)
    )


def non_empty(settlement: Settlement) -> dict[str, list[object]]:
    """What a settlement says of ids and claims, without what it does not mention."""
    names = [name for name in settlement.__struct_fields__ if name != "message_ids"]
    return {name: list(said) for name in names if (said := getattr(settlement, name))}
