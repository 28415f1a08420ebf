"""Pipeline of a destination: its settlements count as progress, and lost lanes do not spoil the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, FailedOutcome, Fence, ReadResult, RecoveredClaim, Selection, Settlement
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import StoreRefused, StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.relay import pipeline as pipeline_module
from pillarbox.relay.pipeline import Pipeline, Settler
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import LEASE, SINK, build_state, claim_next, grant, owned, put

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

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        unclaimed = await super().settle(fence, settlement)
        self.frozen.advance(timedelta(minutes=1))
        assert self.pipeline is not None
        self.beats.append(self.frozen.monotonic() - self.pipeline.progress.last_turn)
        if len(self.beats) < ENOUGH:
            _acknowledge_one(self.pipeline)
        else:
            self.answered.set()
        return unclaimed


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


# --- stop ---


class _Silent(MemoryTransport):
    """Acknowledges the first message of all, and leaves the others without an answer."""

    def __init__(self) -> None:
        super().__init__(batch=1)
        self.sent: list[int] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sent += [message.id for message in messages]
        if self.sent[0] not in [message.id for message in messages]:
            await asyncio.Event().wait()
        return [Outcome(True)] * len(messages)


async def test_a_stop_gives_back_what_is_unanswered_and_what_is_unsent() -> None:
    """Not only by leaving the registry: that may not be possible, and then the claims count as strikes."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None, None, "a", "a")
    transport = _Silent()
    pipeline = Pipeline(
        build_state(store, clock), transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    first, second, third, fourth = await claim_next(state, limit=4)
    pipeline._sender.send_ready()
    await asyncio.sleep(0)
    assert transport.sent == [first.id, second.id, third.id]
    await pipeline.drain(within=0.01)
    assert [message.id for message in await store.find(Selection(states=[State.DELIVERED]), limit=9)] == [first.id]
    pending = await store.find(Selection(states=[State.PENDING]), limit=9)
    assert [(one.id, one.attempts) for one in pending] == [(second.id, 0), (third.id, 0), (fourth.id, 0)]
    assert state.ordering.in_flight == 0
    assert list(await store.claims(older_than=timedelta(0), limit=9)) == []


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


# --- lanes and answers that are waited for ---


async def test_a_lane_whose_answers_do_not_come_is_released_after_the_send_timeout() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    await claim_next(state)
    state.ordering.next_batch(1)
    pipeline.revoke([0])
    await pipeline._release_lanes()
    assert list(state.epochs) == [0], "it is being sent"
    clock.advance(state.settings.send_timeout)
    await pipeline._release_lanes()
    assert (list(state.epochs), state.ordering.in_flight) == ([], 0)


async def test_a_stop_waits_for_the_answers_to_what_is_being_sent() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a")
    transport = MemoryTransport()
    await transport.open()
    transport.hang()
    state = build_state(store, clock)
    pipeline = Pipeline(
        state, transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip
    pipeline.grant(await owned(state, 0), [], [])
    await claim_next(state)
    pipeline._sender.send_ready()
    async with asyncio.timeout(60):
        await transport.arrived.wait()
        stopping = asyncio.create_task(pipeline.drain(within=60))
        await asyncio.sleep(0)
        transport.come_back()
        await stopping
    assert await store.count(Selection(states=[State.DELIVERED])) == 1


# --- settlements without an answer ---


class _Unanswered(MemoryStore):
    """Records the first settlement, and its answer is lost. Then a person redrives what failed."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.settlements = 0

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        unclaimed = await super().settle(fence, settlement)
        self.settlements += 1
        if self.settlements == 1:
            assert (await self.redrive(Selection(), by="anna", limit=10)).count == 1
            raise StoreUnavailable("the line broke")
        return unclaimed


async def test_a_settlement_without_an_answer_undoes_no_redrive() -> None:
    clock = FrozenClock()
    store = _Unanswered(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    state, ordering = pipeline.state, pipeline.state.ordering
    (first,) = await claim_next(state)
    ordering.next_batch(10)
    ordering.mark_failed(first, FailedOutcome(message_id=first.id, state=State.FAILED, attempts=5))
    settler = Settler(state)
    await settler.run_once()
    assert [message.state for message in await store.find(Selection(ids=[first.id]), limit=1)] == [State.PENDING]
    assert store.settlements == 2


# --- claims that a crash of the database lost ---


async def _lose_claim(store: MemoryStore, clock: FrozenClock, *keys: str) -> tuple[Pipeline, Message]:
    """Claim messages, send the first, and lose the claim, as a crash of the database does; return the one sent."""
    put(store, *keys)
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    await _read(pipeline)
    (first,) = pipeline.state.ordering.next_batch(10)
    store._data.claims.clear()
    return pipeline, first


async def _read(pipeline: Pipeline) -> None:
    """Let the reader make a few rounds, and settle what comes of them."""
    settler = Settler(pipeline.state)
    for _ in range(4):
        await pipeline.reader.run_once()
        await pipeline.reader.finish()
        while await settler.run_once():
            pass


async def test_a_delivery_whose_claim_was_lost_is_sent_again_soon() -> None:
    """Its settlement finds no claim, and the mark of its lane stands above it."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    pipeline, first = await _lose_claim(store, clock, "a")
    ordering = pipeline.state.ordering
    ordering.mark_delivered([first])
    await _read(pipeline)
    assert ordering.next_batch(10) == [first]
    ordering.mark_delivered([first])
    await _read(pipeline)
    assert [message.state for message in await store.find(Selection(), limit=9)] == [State.DELIVERED]
    assert not ordering.in_flight


@pytest.mark.parametrize(("state", "waits"), [(State.FAILED, None), (State.PENDING, Waits.RETRY)])
async def test_nothing_overtakes_a_failure_whose_claim_was_lost(state: State, waits: Waits | None) -> None:
    clock = FrozenClock()
    pipeline, first = await _lose_claim(MemoryStore(clock=clock), clock, "a", "a")
    ordering = pipeline.state.ordering
    ordering.mark_failed(first, FailedOutcome(message_id=first.id, state=state, waits=waits, attempts=1, error="no"))
    await _read(pipeline)
    assert [message.id for message in ordering.next_batch(10)] == [first.id]


# --- handing lanes over ---


class _SlowWrites(MemoryStore):
    """Records one claim for each permit, and a release when the test lets it."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.permits = asyncio.Semaphore(0)
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.released: list[Fence] = []

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        await self.permits.acquire()
        assert not self.released
        return await super().claim(fence, claim, park=park)

    async def release(self, fence: Fence) -> None:
        self.released.append(fence)
        await self.may_release.wait()
        await super().release(fence)


async def _let_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_lane_is_released_after_the_claim_that_parks_its_messages() -> None:
    """What is parked is not in flight. Released before, the write would be refused as that of a stranger."""
    clock = FrozenClock()
    store = _SlowWrites(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    pipeline.state.ordering.block(0, "a", front=Waits.HELD)
    await pipeline.reader.run_once()
    pipeline.revoke([0])
    release = asyncio.create_task(pipeline._release_lanes())
    await _let_run()
    assert not store.released
    store.permits.release()
    await release
    assert len(store.released) == 1
    assert [message.waits for message in await store.find(Selection(), limit=9)] == [Waits.PARKED]


async def test_a_claim_that_waits_for_its_turn_leaves_out_a_lane_that_is_released() -> None:
    """Two batches are read at a time. The claim of the second begins when the lane is as good as gone."""
    clock = FrozenClock()
    store = _SlowWrites(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    pipeline.state.ordering.block(0, "a", front=Waits.HELD)
    await pipeline.reader.run_once()
    put(store, "a")
    second = asyncio.create_task(pipeline.reader.run_once())
    await _let_run()
    pipeline.revoke([0])
    release = asyncio.create_task(pipeline._release_lanes())
    await _let_run()
    store.permits.release()
    await release
    assert len(store.released) == 1
    store.permits.release()
    await second
    await pipeline.reader.finish()
    assert [message.waits for message in await store.find(Selection(), limit=9)] == [Waits.PARKED, None]


async def test_a_late_lane_is_released_after_the_claim_of_a_group_of_suspects() -> None:
    clock = FrozenClock()
    store = _SlowWrites(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    store.permits.release()
    await claim_next(state, strikes=2)
    group = state.ordering.next_suspects(1)
    claim = asyncio.create_task(pipeline._sender._claim_group(group))
    await _let_run()
    pipeline.revoke([0])
    clock.advance(state.settings.send_timeout)
    release = asyncio.create_task(pipeline._release_lanes())
    await _let_run()
    assert not store.released
    store.permits.release()
    assert not await claim, "its messages are the next owner's"
    await release
    assert len(store.released) == 1


async def test_no_group_of_suspects_is_claimed_in_a_lane_that_is_released() -> None:
    clock = FrozenClock()
    store = _SlowWrites(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    store.permits.release()
    await claim_next(state, strikes=2)
    group = state.ordering.next_suspects(1)
    await state.writes.stop([0])
    store.permits.release()
    assert not await pipeline._sender._claim_group(group)
    assert not store.permits.locked(), "nothing was asked of the store"


class _LateClaims(MemoryStore):
    """Answers one claim for each permit, after it took effect."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.permits = asyncio.Semaphore(0)

    async def claim(self, fence: Fence, claim: Claim, **options: Any) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim, **options)
        await self.permits.acquire()
        return revisions


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_a_group_of_suspects_is_not_sent_whose_lane_was_taken_again(is_claimed: bool) -> None:
    """They came back with another claim, and are on their way to the table."""
    clock = FrozenClock()
    store = _LateClaims(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    store.permits.release()
    await claim_next(state, strikes=2)
    group = state.ordering.next_suspects(1)
    claim = asyncio.create_task(pipeline._sender._claim_group(group))
    if is_claimed:  # else it was chosen, and another part of the group is being claimed
        await _let_run()
    state.drop_lanes([0], is_fenced=False)
    (lane,), recovered = await store.take(
        state.lease.relay_id, SINK, partitions=[0], lease=LEASE,
        claim_number=state.lease.reserve_claim_numbers(10),
    )  # fmt: skip
    pipeline.grant([lane], recovered, [])
    store.permits.release()
    store.permits.release()
    assert not await claim
    settlement, _ = state.ordering.next_settlement(10)
    assert (list(settlement.returned), len(settlement.finished)) == ([1], 1)
    await store.settle(state.fence([0]), settlement)
    assert await store.claims(older_than=timedelta(0)) == []


async def test_a_stop_waits_for_a_release_that_had_begun_and_begins_no_other() -> None:
    """What a stopping relay records in a lane that was just released would be refused."""
    clock = FrozenClock()
    store = _SlowWrites(clock)
    store.may_release.clear()
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0, 1), [], [])
    pipeline.revoke([0])
    release = asyncio.create_task(pipeline._release_lanes())
    await _let_run()
    stop = asyncio.create_task(pipeline.drain(within=1.0))
    await _let_run()
    assert not stop.done()
    store.may_release.set()
    await asyncio.gather(release, stop)
    pipeline.revoke([1])
    await pipeline._release_lanes()
    assert [list(fence.epochs) for fence in store.released] == [[0]]


async def test_a_refused_release_lets_writes_go_on() -> None:
    clock = FrozenClock()
    store = _RefusedRelease(clock=clock)
    pipeline = _pipeline(store, clock)
    state = pipeline.state
    pipeline.grant(await owned(state, 0), [], [])
    pipeline.revoke([0])
    await pipeline._release_lanes()
    assert state.may_write(0), "the lane is still this relay's, and is released later"


class _RefusedRelease(MemoryStore):
    async def release(self, fence: Fence) -> None:
        raise StoreRefused("no")


# --- stopping ---


class _SlowRead(MemoryStore):
    """Reads when it is told to."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.may_read = asyncio.Event()

    async def read(self, *arguments: Any, **options: Any) -> ReadResult:
        await self.may_read.wait()
        return await super().read(*arguments, **options)


async def test_a_relay_that_stops_claims_nothing_that_it_was_reading() -> None:
    """The lanes are left as soon as nothing is in flight. A claim after that would be refused as a stranger's."""
    clock = FrozenClock()
    store = _SlowRead(clock)
    put(store, "a")
    pipeline = _pipeline(store, clock)
    pipeline.grant(await owned(pipeline.state, 0), [], [])
    reading = asyncio.create_task(pipeline.reader.run_once())
    await asyncio.sleep(0)
    await pipeline.drain(within=1.0)
    store.may_read.set()
    await reading
    await pipeline.reader.finish()
    assert not await store.claims(older_than=timedelta(0))
