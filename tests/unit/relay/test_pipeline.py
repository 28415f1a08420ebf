"""Pipeline of a destination: its settlements count as progress, and lost lanes do not spoil the others."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, Fence, RecoveredClaim, Selection, Settlement
from pillarbox.message import Message, State
from pillarbox.relay import pipeline as pipeline_module
from pillarbox.relay.pipeline import Pipeline, Settler
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import LEASE, SINK, build_state, grant, owned, put

# --- progress ---


ENOUGH = 5


class _Slow(MemoryStore):
    """Takes a minute for each settlement, in which one more message is acknowledged."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.frozen = clock
        self.pipeline: Pipeline | None = None
        self.beats: list[float] = []
        self.answered = asyncio.Event()

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        await super().settle(fence, settlement)
        self.frozen.advance(timedelta(minutes=1))
        assert self.pipeline is not None
        self.beats.append(self.frozen.monotonic() - self.pipeline.progress.last_turn)
        if len(self.beats) < ENOUGH:
            _acknowledge_one(self.pipeline)
        else:
            self.answered.set()


def _acknowledge_one(pipeline: Pipeline) -> None:
    pipeline.state.ordering.mark_delivered(pipeline.state.ordering.next_batch(1))


def _pipeline(store: MemoryStore, clock: FrozenClock) -> Pipeline:
    transport = MemoryTransport()
    return Pipeline(
        build_state(store, clock), transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip


async def _in_hand(pipeline: Pipeline, store: MemoryStore) -> list[Message]:
    """Everything in the store, claimed and ready to go."""
    ordering = pipeline.state.ordering
    partitions, _ = ordering.begin_read()
    reading = await store.read(SINK, partitions=partitions, cursor=None, limit=100)
    offer = ordering.accept_read(reading, partitions)
    ordering.confirm_claim(pipeline.state.lease.next_claim_number(), offer.take)
    return list(offer.take)


async def test_waiting_for_the_store_counts_as_progress() -> None:
    """Without that a lock in the database would cost the lease, and everything acknowledged would be sent again."""
    clock = FrozenClock()
    store = _Slow(clock)
    put(store, *[None] * ENOUGH)
    store.pipeline = pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    assert len(await _in_hand(pipeline, store)) == ENOUGH
    _acknowledge_one(pipeline)
    pipeline.state.settle_event.set()
    settling = asyncio.create_task(pipeline._run_settler())
    try:
        await asyncio.wait_for(store.answered.wait(), 30)
    finally:
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
    assert max(store.beats) == 0.0
    clock.advance(timedelta(minutes=1))
    assert clock.monotonic() - pipeline.progress.last_turn == 60.0, "a loop that ended makes no progress"


async def test_an_idle_store_is_read_as_seldom_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note_wait(_: asyncio.Event, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 20:
            raise asyncio.CancelledError

    monkeypatch.setattr(pipeline_module, "wait_for_event", note_wait)
    clock = FrozenClock()
    transport = MemoryTransport()
    pipeline = Pipeline(
        build_state(MemoryStore(clock=clock), clock), transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=8)),
    )  # fmt: skip
    with pytest.raises(asyncio.CancelledError):
        await pipeline._run_reader()
    assert (waits[0], waits[-1]) == (0.005, 8.0)


async def test_what_was_inherited_is_given_back_without_waiting_for_anything_else() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None)
    pipeline = _pipeline(store, clock)
    lanes = await owned(pipeline.state, 0)
    (message,) = (await store.read(SINK, partitions=[0], cursor=None, limit=1)).messages
    pipeline.state.settle_event.clear()
    pipeline.grant(lanes, [RecoveredClaim(Claim(1, [message.id], 1), [message])], [])
    assert pipeline.state.ordering.has_outcomes
    assert pipeline.state.settle_event.is_set()


# --- lost lanes ---


async def test_what_is_in_lanes_of_its_own_is_recorded_though_another_lane_was_lost() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    for partition in (0, 1):
        put(store, None, partition=partition)
    state = build_state(store, clock)
    await grant(state, 0, 1)
    partitions, _ = state.ordering.begin_read()
    reading = await store.read(SINK, partitions=partitions, cursor=None, limit=10)
    offer = state.ordering.accept_read(reading, partitions)
    number = state.lease.next_claim_number()
    await store.claim(state.fence(partitions), Claim(number, [message.id for message in offer.take]))
    state.ordering.confirm_claim(number, offer.take)
    state.ordering.mark_delivered(state.ordering.next_batch(10))
    await owned(build_state(store, clock), 0)
    settler = Settler(state)
    assert [await settler.run_once() for _ in range(3)] == [True, True, False]
    (delivered,) = await store.find(Selection(states=[State.DELIVERED]), limit=10)
    assert (delivered.partition, list(state.epochs), state.ordering.in_flight) == (1, [1], 0)
