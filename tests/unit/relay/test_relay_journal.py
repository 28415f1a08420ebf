"""What a relay notices stands in the journal, and a person can have a destination tried at once."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from uuid import UUID, uuid4

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import SystemClock
from pillarbox.contracts.store import Action, Store
from pillarbox.errors import StoreUnavailable
from pillarbox.relay.breaker import AddressBreakers, Breaker
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.journal import RelayJournal
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Rebalancer
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample_relay

LEASE = timedelta(seconds=10)


class Ears(Telemetry):
    def __init__(self) -> None:
        self.failed: list[str] = []

    def on_store_failed(self, what: str, error: Exception) -> None:
        self.failed.append(what)


def build_state(store: Store, journal: RelayJournal) -> DestinationState:
    return DestinationState(
        DestinationSettings(name="billing"), store=store, lease=Lease(duration=LEASE),
        policy=OutcomePolicy(retry=RetryPolicy()), clock=SystemClock(), telemetry=Telemetry(),
        dice=random.Random(1), note=journal.add,
    )  # fmt: skip


async def test_an_outage_and_its_end_are_one_line_each() -> None:
    store, relay_id = MemoryStore(), uuid4()
    journal = RelayJournal(store, relay_id, telemetry=Telemetry())
    state = build_state(store, journal)
    for _ in range(3):
        state.open_breaker("amqp://u:secret@host is away")
    state.close_breaker()
    state.close_breaker()
    await journal.run_once()
    lines = await store.journal(messages=False)
    assert [(line.action, line.destination, line.by) for line in lines] == [
        (Action.OUTAGE, "billing", str(relay_id)),
        (Action.RECOVERED, "billing", str(relay_id)),
    ]
    assert "away" in (lines[0].detail or "")
    assert "secret" not in (lines[0].detail or "")


async def test_a_relay_that_stops_in_an_outage_writes_its_end() -> None:
    store, down = MemoryStore(), MemoryTransport()
    down.go_down()
    relay = Relay(store, [Destination(lambda: down, DestinationSettings(name="billing"))], settings=RelaySettings())

    async def list_actions() -> list[str]:
        return [line.action for line in await store.journal(messages=False) if line.destination == "billing"]

    async with asyncio.timeout(20), relay:
        while Action.OUTAGE not in await list_actions():  # noqa: ASYNC110 - the memory store has no event for it
            await asyncio.sleep(0.01)
    assert await list_actions() == [Action.OUTAGE, Action.RECOVERED]


async def test_a_line_that_the_store_does_not_take_is_dropped() -> None:
    class Away(MemoryStore):
        async def note(self, action: str, **options: object) -> None:
            raise StoreUnavailable("away")

    ears = Ears()
    journal = RelayJournal(Away(), uuid4(), telemetry=ears)
    for number in range(500):
        journal.add(Action.OUTAGE, "billing", str(number))
    await journal.run_once()
    assert ears.failed == ["writing to the journal"] * 100, "no more lines wait than that"
    await journal.run_once()
    assert len(ears.failed) == 100


async def test_lanes_of_a_dead_relay_are_one_line() -> None:
    store, lease = MemoryStore(), Lease(duration=LEASE)
    dead = sample_relay(destination="billing")
    await store.register(dead, lease=LEASE)
    await store.take(dead.relay_id, "billing", partitions=range(3), lease=LEASE, claim_number=1)
    del store.data.relays[dead.relay_id]
    journal = RelayJournal(store, lease.relay_id, telemetry=Telemetry())
    relay = Relay(store, [Destination(MemoryTransport, DestinationSettings(name="billing"))])
    pipelines = relay._build_pipelines(lease)
    await store.register(sample_relay(relay_id=lease.relay_id, destination="billing"), lease=LEASE)
    clock = SystemClock()
    lease.extend(clock.monotonic())
    rebalancer = Rebalancer(
        store, lease, pipelines, settings=RelaySettings(), clock=clock, telemetry=Telemetry(), note=journal.add
    )
    for _ in range(2):
        await rebalancer.run_once()
    await journal.run_once()
    (line,) = await store.journal()
    assert (line.action, line.destination) == (Action.TOOK_OVER, "billing")
    assert line.detail == f"3 lanes of relay {dead.relay_id}"


async def test_a_probe_is_tried_once_by_a_relay_whose_breaker_is_open() -> None:
    store, lease = MemoryStore(), Lease(duration=LEASE)
    relay = Relay(store, [Destination(MemoryTransport, DestinationSettings(name="billing"))])
    pipelines = relay._build_pipelines(lease)
    await store.register(sample_relay(relay_id=lease.relay_id, destination="billing"), lease=LEASE)
    clock = SystemClock()
    lease.extend(clock.monotonic())
    rebalancer = Rebalancer(store, lease, pipelines, settings=RelaySettings(), clock=clock, telemetry=Telemetry())
    state = pipelines["billing"].state
    at_least = timedelta(hours=1)
    await store.probe("billing", by="anna")
    state.open_breaker("down", at_least=at_least)
    await rebalancer.run_once()
    assert state.breaker.wait(clock.monotonic()) > 3_000, "what was asked before it began is not its own"
    await asyncio.sleep(0.001)  # another time of the clock
    await store.probe("billing", by="anna")
    state.read_event.clear()
    await rebalancer.run_once()
    assert state.breaker.wait(clock.monotonic()) == 0
    assert state.read_event.is_set()
    state.open_breaker("down", at_least=at_least)
    await rebalancer.run_once()
    assert state.breaker.wait(clock.monotonic()) > 3_000, "a request is tried once"


def test_a_closed_breaker_is_not_hurried() -> None:
    breaker = Breaker()
    assert not breaker.hurry(5.0)
    breaker.open(5.0, reason="down", dice=1.0)
    assert breaker.wait(5.0) > 0
    assert breaker.hurry(5.0)
    assert breaker.half_open(5.0)
    assert not breaker.hurry(5.0), "a probe is under way"


def test_a_blocked_address_is_probed_at_once() -> None:
    addresses = AddressBreakers()
    addresses.refuse("orders", 5.0, message_id=UUID(int=1), reason="missing", dice=1.0, is_missing=True)
    assert not addresses.may_send("orders", 5.0)
    addresses.hurry(5.0)
    assert addresses.may_send("orders", 5.0)
    assert not addresses.may_send("orders", 5.0), "one message goes as its probe"
