"""One destination's work over a memory store, on a clock that stands still: for tests of one loop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, Lane
from pillarbox.contracts.writer import Insert
from pillarbox.message import Kind, Message, Names
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.lease import Lease
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import DEFAULT_RETRY
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample_relay

__all__ = ["LEASE", "SINK", "build_state", "claim_next", "grant", "owned", "put"]

LEASE = timedelta(seconds=10)
SINK = "sink"


def build_state(
    store: MemoryStore, clock: FrozenClock, *, lease: Lease | None = None, name: str = SINK, **options: object
) -> DestinationState:
    """A relay's work for one destination, with a lease that has just begun."""
    lease = Lease(duration=LEASE) if lease is None else lease
    lease.extend(clock.monotonic())
    return DestinationState(
        DestinationSettings(name=name, **options),  # type: ignore[arg-type]
        store=store, lease=lease, policy=OutcomePolicy(retry=DEFAULT_RETRY), clock=clock, telemetry=Telemetry(),
        dice=random.Random(1),
    )  # fmt: skip


async def owned(state: DestinationState, *partitions: int) -> Sequence[Lane]:
    """Take lanes in the store; what to do with them is the test's business.

    The relay counts as expired there, so another one may take them.
    """
    await state.store.register(sample_relay(relay_id=state.lease.relay_id, destination=SINK), lease=timedelta(0))
    lanes, _ = await state.store.take(
        state.lease.relay_id,
        SINK,
        partitions=partitions,
        lease=LEASE,
        claim_number=state.lease.reserve_claim_numbers(10),
    )
    return lanes


async def grant(state: DestinationState, *partitions: int) -> None:
    """Take lanes, in the store and in the ordering."""
    for lane in await owned(state, *partitions):
        state.epochs[lane.partition] = lane.epoch
        state.ordering.grant(lane.partition)


async def claim_next(state: DestinationState, *, strikes: int = 0, limit: int = 1) -> Sequence[Message]:
    """Have the next messages of the lanes read and claimed, with so many strikes against them."""
    partitions, _ = state.ordering.begin_read()
    reading = await state.store.read(SINK, partitions=partitions, cursor=None, limit=limit)
    offer = state.ordering.accept_read(reading, partitions)
    number = state.lease.next_claim_number()
    await state.store.claim(state.fence(partitions), Claim(number, [message.id for message in offer.take], strikes))
    state.ordering.confirm_claim(number, offer.take, strikes=strikes)
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
