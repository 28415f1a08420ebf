"""Shared poll: one look for all idle destinations in place of their rounds, and no round less than is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import IdleLanes, QuietLanes, Selection
from pillarbox.contracts.writer import Insert
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Names, State
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.polling import PollBackoff, SharedPoll
from pillarbox.relay.reader import Reader
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import find_key, sample, sample_relay
from pillarbox.testing.store_contract.arrange import fail, hold, retry, settle_failures
from tests.support.lanes.destination_bench import LEASE, build_state

NAMES = [f"sink-{number}" for number in range(5)]
KEY = find_key(0)
SECOND = timedelta(seconds=1)
WATCHED = ("read", "find_due", "blocked_keys", "peek")


class Counting(MemoryStore):
    """Writes down what it is asked. `fails` lets looks fail; `meanwhile` happens during one."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.asked: list[str] = []
        self.fails = False
        self.meanwhile: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name in WATCHED:
            self.asked.append(name)
        return super().__getattribute__(name)

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        if self.fails:
            raise StoreUnavailable("It is away.")
        quiet = await super().peek(idle)
        if self.meanwhile is not None:
            await self.meanwhile()
        return quiet


class Bench:
    """Five destinations in one relay that rest: every one has made rounds until it found nothing."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.store = Counting(self.clock)
        self.states: dict[str, DestinationState] = {}
        self.readers: dict[str, Reader] = {}
        self.polls = SharedPoll(self.readers, store=self.store, poll_interval=SECOND, telemetry=Telemetry())

    async def start(self) -> None:
        relay = sample_relay()
        await self.store.register(replace(relay, destinations=NAMES, reachable=NAMES), lease=100 * LEASE)
        for name in NAMES:
            state = self.states[name] = build_state(self.store, self.clock, name=name)
            state.lease.relay_id = relay.relay_id
            lanes, _ = await self.store.take(
                relay.relay_id, name, partitions=[0, 1], lease=100 * LEASE, claim_number=1_000
            )
            for lane in lanes:
                state.epochs[lane.partition] = lane.epoch
                state.ordering.grant(lane.partition)
            self.readers[name] = Reader(
                state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=SECOND), retry_interval=SECOND
            )
        await self.rest()

    async def rest(self) -> None:
        """Let every reader make rounds, and then rest."""
        for name, reader in self.readers.items():
            for _ in range(3):
                await reader.run_once()
                await reader.finish()
            self.states[name].read_event.clear()
            reader.is_resting = True
        self.store.asked.clear()

    async def look(self, *, after: timedelta = timedelta(0)) -> list[str]:
        """Let the shared poll look once; return the destinations that it sent on a round."""
        self.clock.advance(after)
        for state in self.states.values():
            state.lease.extend(self.clock.monotonic())
            state.read_event.clear()
        await self.polls.run_once()
        return [name for name, state in self.states.items() if state.read_event.is_set()]

    def put(self, name: str, **fields: Any) -> None:
        with self.store.transaction() as transaction:
            transaction.insert(Insert(names=Names(), messages=[sample(key=KEY, destination=name, **fields)]))


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.start()
    return bench


async def test_idle_destinations_cost_one_look(bench: Bench) -> None:
    for _ in range(5):
        assert await bench.look(after=SECOND) == []
    assert bench.store.asked == ["peek"] * 5


async def test_a_fresh_message_sends_its_destination_on_a_round(bench: Bench) -> None:
    await bench.look()
    bench.put(NAMES[3])
    assert await bench.look() == [NAMES[3]]


async def test_a_deferred_message_does_so_when_it_is_due(bench: Bench) -> None:
    bench.put(NAMES[1], available_at=bench.clock.now() + 3 * SECOND)
    assert await bench.look(after=SECOND) == []
    assert await bench.look(after=2 * SECOND) == [NAMES[1]]
    await bench.readers[NAMES[1]].run_once()
    assert bench.states[NAMES[1]].ordering.in_flight == 1


async def test_a_message_that_was_committed_late_does_so(bench: Bench) -> None:
    with bench.store.transaction() as slow:
        slow.insert(Insert(names=Names(), messages=[sample(key=KEY, destination=NAMES[0])]))
        bench.put(NAMES[0])
        (found,) = (await bench.store.read(NAMES[0], partitions=[0], cursor=None, limit=9)).messages
        await bench.store.discard(Selection(ids=[found.id]), by="test", reason="read", limit=1)
        bench.readers[NAMES[0]].is_resting = False
        await bench.readers[NAMES[0]].run_once()
        bench.readers[NAMES[0]].is_resting = True
        assert await bench.look() == []
    assert await bench.look() == [NAMES[0]]


async def test_a_redriven_message_does_so(bench: Bench) -> None:
    name = NAMES[2]
    bench.put(name)
    (message,) = (await bench.store.read(name, partitions=[0], cursor=None, limit=9)).messages
    await settle_failures(bench.store, bench.states[name].fence([0]), fail(message))
    assert await bench.look() == []
    await bench.store.redrive(Selection(states=[State.FAILED]), by="test", limit=1)
    assert await bench.look() == [name]


async def test_lanes_are_still_read_from_their_start_now_and_then(bench: Bench) -> None:
    assert await bench.look(after=4 * SECOND) == []
    assert await bench.look(after=4 * SECOND) == []
    assert await bench.look(after=3 * SECOND) == NAMES
    assert bench.store.asked == ["peek"] * 3
    bench.store.asked.clear()
    for reader in bench.readers.values():
        await reader.run_once()
    assert bench.store.asked == ["read"] * len(NAMES)


async def test_blocked_keys_are_read_now_and_then_only_where_something_blocks(bench: Bench) -> None:
    name = NAMES[4]
    bench.put(name)
    (message,) = (await bench.store.read(name, partitions=[0], cursor=None, limit=9)).messages
    await settle_failures(bench.store, bench.states[name].fence([0]), hold(message))
    await bench.rest()
    assert await bench.look(after=4 * SECOND) == []
    assert await bench.look(after=2 * SECOND) == [name]


async def test_a_retry_that_is_due_is_taken(bench: Bench) -> None:
    name = NAMES[0]
    bench.put(name)
    (message,) = (await bench.store.read(name, partitions=[0], cursor=None, limit=9)).messages
    await settle_failures(bench.store, bench.states[name].fence([0]), retry(message, delay=3 * SECOND))
    await bench.rest()
    assert await bench.look(after=2 * SECOND) == []
    assert await bench.look(after=2 * SECOND) == [name]
    for _ in range(2):
        await bench.readers[name].run_once()
    assert bench.states[name].ordering.in_flight == 1


async def test_a_destination_with_something_to_do_is_not_looked_into(bench: Bench) -> None:
    paused, down, returned, lost = NAMES[:4]
    bench.states[paused].pause("by hand")
    bench.states[down].open_breaker("no connection")
    bench.states[returned].ordering.restart([0])
    bench.states[lost].drop_lanes([0])
    assert await bench.look() == [paused, down, returned, lost]
    assert bench.store.asked == ["peek"]


async def test_a_look_that_fails_leaves_it_to_the_readers(bench: Bench) -> None:
    bench.store.fails = True
    assert await bench.look() == NAMES


async def test_a_round_during_the_look_has_the_last_word(bench: Bench) -> None:
    """The look's cursor is older than the round's: what the round read would come again, or worse."""
    name = NAMES[0]
    reader = bench.readers[name]

    async def make_a_round() -> None:
        bench.put(name)
        reader.is_resting = False
        await reader.run_once()
        await reader.finish()
        reader.is_resting = True

    bench.store.meanwhile = make_a_round
    await bench.look()
    bench.store.meanwhile = None
    assert bench.states[name].ordering.in_flight == 1
    result = await bench.store.read(name, partitions=[0], cursor=reader._cursor, limit=9)
    assert not result.messages


async def test_an_idle_destination_is_still_pinged() -> None:
    pinged = asyncio.Event()

    class Pinged(MemoryTransport):
        async def ping(self) -> None:
            pinged.set()

    bench = Bench()
    await bench.start()
    bench.readers[NAMES[0]]._transport = Pinged()
    for _ in range(12):
        await bench.look(after=5 * SECOND)
        await asyncio.sleep(0)
        await bench.rest()
    assert pinged.is_set()


async def test_it_looks_again_when_it_is_woken_during_a_look() -> None:
    """What was committed then may not have been seen."""
    bench = Bench()
    await bench.start()
    looks = 0

    async def wake_once() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            bench.polls.wake()

    bench.store.meanwhile = wake_once
    bench.polls = SharedPoll(bench.readers, store=bench.store, poll_interval=LEASE * 100, telemetry=Telemetry())
    running = asyncio.create_task(bench.polls.run())
    try:
        async with asyncio.timeout(10):
            while looks < 2:  # noqa: ASYNC110 - counted by the store
                await asyncio.sleep(0)
    finally:
        running.cancel()
    assert looks == 2
