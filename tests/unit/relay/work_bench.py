"""One destination's work over a memory store, on a clock that stands still: for tests of one loop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pillarbox.clock import FrozenClock
from pillarbox.message import Kind, Message
from pillarbox.names import Names
from pillarbox.protocols import Claim, Insert, Lane
from pillarbox.relay.judging import Judge
from pillarbox.relay.settings import DestinationSettings
from pillarbox.relay.standing import Standing
from pillarbox.relay.work import Work
from pillarbox.retry import DEFAULT_RETRY
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry

__all__ = ["LEASE", "SINK", "claim_next", "grant", "owned", "put", "work_on"]

LEASE = timedelta(seconds=10)
SINK = "sink"


def work_on(store: MemoryStore, clock: FrozenClock, **options: object) -> Work:
    """A relay's work for `sink`, with a lease that has just begun."""
    standing = Standing(lease=LEASE)
    standing.renewed(clock.monotonic())
    return Work(
        DestinationSettings(name=SINK, **options),  # type: ignore[arg-type]
        store=store, standing=standing, judge=Judge(retry=DEFAULT_RETRY), clock=clock, telemetry=Telemetry(),
        dice=random.Random(1),
    )  # fmt: skip


async def owned(work: Work, *partitions: int) -> Sequence[Lane]:
    """Take lanes in the store; what to do with them is the test's business."""
    lanes, _ = await work.store.take(
        work.standing.relay_id, SINK, partitions=partitions, lease=LEASE, claim_number=work.standing.next_claims(10)
    )
    return lanes


async def grant(work: Work, *partitions: int) -> None:
    """Take lanes, in the store and in the core."""
    for lane in await owned(work, *partitions):
        work.epochs[lane.partition] = lane.epoch
        work.core.grant(lane.partition)


async def claim_next(work: Work, *, strikes: int = 0) -> Sequence[Message]:
    """Have the next message of the lanes read and claimed, with so many strikes against it."""
    partitions, _ = work.core.begin_reading()
    reading = await work.store.read(SINK, partitions=partitions, cursor=None, limit=1)
    offer = work.core.offer_read(reading, partitions)
    number = work.standing.next_claim()
    await work.store.claim(work.fence(partitions), Claim(number, [message.id for message in offer.take], strikes))
    work.core.claimed(number, offer.take, strikes=strikes)
    return offer.take


def put(store: MemoryStore, *keys: str | None, partition: int = 0) -> None:
    """Commit a message of each key."""
    messages = [_message(number, key, partition) for number, key in enumerate(keys, start=1)]
    with store.transaction() as transaction:
        transaction.insert(Insert(names=Names(), messages=messages))


def _message(number: int, key: str | None, partition: int) -> Message:
    happened = datetime(2026, 1, 1, tzinfo=UTC)
    return Message(
        0, UUID(int=number), SINK, partition, Kind.EVENT, "t", "t", key, b"", "text/plain", {}, "/", None, "c", None,
        happened,
    )  # fmt: skip
