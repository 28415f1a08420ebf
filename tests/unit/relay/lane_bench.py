"""The shortest way through each step of the ordering core, for tests of one rule."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Cursor, Reading, Settlement, Trouble
from pillarbox.relay.lane import LaneCore, Offer, Wanted

__all__ = ["Bench", "failed", "held", "ids", "retry", "told"]


class Bench:
    """A core that owns some lanes, whose store answers at once."""

    def __init__(
        self, *, lanes: Iterable[int] = (0,), window: int = 100, key_share: int = 10, leaves: bool = False
    ) -> None:
        self.core = LaneCore(window=window, key_share=key_share, leaves=leaves)
        self._number = 0
        for lane in lanes:
            self.core.grant(lane)

    def read(self, *messages: Message) -> Offer:
        """A read of every lane, to its end, that found these."""
        partitions, _ = self.core.begin_reading()
        low: dict[int, int] = {}
        for message in messages:
            low[message.partition] = message.id
        return self.core.offer_read(Reading(messages, Cursor(low), frozenset(partitions)), partitions)

    def due(self, *messages: Message) -> Offer:
        """A read of due messages that found these."""
        self.core.begin_due()
        return self.core.offer(messages)

    def wanted(self) -> Wanted:
        """The one key that is to be read."""
        (wanted,) = self.core.wanted(10)
        return wanted

    def claim(self, offer: Offer) -> int:
        """Have it recorded."""
        self._number += 1
        self.core.parked(offer.park)
        self.core.claimed(self._number, offer.take)
        return self._number

    def take(self, *messages: Message) -> Offer:
        """Read and claim."""
        offer = self.read(*messages)
        self.claim(offer)
        return offer

    def send(self, limit: int = 100) -> list[int]:
        """What goes now."""
        return ids(self.core.batch(limit))

    def settle(self) -> Settlement:
        """Have every outcome recorded."""
        settlement, _ = self.core.settlement(100)
        self.core.settled(settlement)
        return settlement


def ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


def failed(message: Message) -> Trouble:
    return Trouble(message_id=message.id, state=State.FAILED, attempts=1)


def held(message: Message) -> Trouble:
    return Trouble(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=1)


def retry(message: Message) -> Trouble:
    return Trouble(
        message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=1, delay=timedelta(seconds=1)
    )


def told(settlement: Settlement) -> dict[str, list[object]]:
    """What a settlement says, without what it does not mention."""
    return {name: list(said) for name in settlement.__struct_fields__ if (said := getattr(settlement, name))}
