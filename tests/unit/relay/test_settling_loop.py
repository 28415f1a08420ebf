"""A pipeline that has always something to record is not one that is stuck."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pillarbox.clock import FrozenClock
from pillarbox.message import Message
from pillarbox.protocols import Claim, Fence, Inherited, Settlement
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.wake import Sleeper
from pillarbox.stores.memory import MemoryStore
from pillarbox.transports.memory import MemoryTransport
from tests.unit.relay.work_bench import LEASE, SINK, owned, put, work_on

ENOUGH = 5


class _Slow(MemoryStore):
    """Takes a second for each settlement, in which one more message is acknowledged."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.frozen = clock
        self.pipeline: Pipeline | None = None
        self.beats: list[float] = []
        self.answered = asyncio.Event()

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        await super().settle(fence, settlement)
        self.frozen.advance(timedelta(seconds=1))
        assert self.pipeline is not None
        self.beats.append(self.frozen.monotonic() - self.pipeline.beat)
        if len(self.beats) < ENOUGH:
            _acknowledge_one(self.pipeline)
        else:
            self.answered.set()


def _acknowledge_one(pipeline: Pipeline) -> None:
    pipeline.work.core.delivered(pipeline.work.core.batch(1))


def _pipeline(store: MemoryStore, clock: FrozenClock) -> Pipeline:
    transport = MemoryTransport()
    return Pipeline(
        work_on(store, clock), transport=transport, open_lone=lambda: transport,
        sleeper=Sleeper(poll_interval=timedelta(seconds=1)), lone_cap=5, patience=LEASE,
    )  # fmt: skip


async def _in_hand(pipeline: Pipeline, store: MemoryStore) -> list[Message]:
    """Everything in the store, claimed and ready to go."""
    core = pipeline.work.core
    partitions, _ = core.begin_reading()
    reading = await store.read(SINK, partitions=partitions, cursor=None, limit=100)
    offer = core.offer_read(reading, partitions)
    core.claimed(pipeline.work.standing.next_claim(), offer.take)
    return list(offer.take)


async def test_every_settlement_counts_as_progress() -> None:
    """Without that the heartbeat would let the lease go under a load that never pauses."""
    clock = FrozenClock()
    store = _Slow(clock)
    put(store, *[None] * ENOUGH)
    store.pipeline = pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.work, 0), [], [])
    assert len(await _in_hand(pipeline, store)) == ENOUGH
    _acknowledge_one(pipeline)
    pipeline.work.outcomes.set()
    settling = asyncio.create_task(pipeline._settling())
    try:
        await asyncio.wait_for(store.answered.wait(), 30)
    finally:
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
    assert max(store.beats) == 1.0


async def test_what_was_inherited_is_given_back_without_waiting_for_anything_else() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None)
    pipeline = _pipeline(store, clock)
    lanes = await owned(pipeline.work, 0)
    (message,) = (await store.read(SINK, partitions=[0], cursor=None, limit=1)).messages
    pipeline.work.outcomes.clear()
    pipeline.grant(lanes, [Inherited(Claim(1, [message.id], 1), [message])], [])
    assert pipeline.work.core.has_outcomes
    assert pipeline.work.outcomes.is_set()
