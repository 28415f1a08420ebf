"""Rebalancer: it takes free lanes for a relay that runs, in its turn, and none for one that stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from unittest.mock import patch
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Lane, RecoveredClaim, Registry
from pillarbox.errors import StoreUnavailable
from pillarbox.message import PARTITIONS
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Rebalancer
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample_relay
from tests.support.lanes.destination_bench import LEASE, SINK, build_state


async def test_a_relay_that_stops_takes_no_lanes() -> None:
    """It would hold them until it has drained, and serve none of them."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    state, transport = build_state(store, clock), MemoryTransport()
    pipeline = Pipeline(
        state, transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip
    rebalancer = Rebalancer(
        store, state.lease, {SINK: pipeline}, settings=RelaySettings(lease=LEASE), clock=clock, telemetry=Telemetry()
    )
    await store.register(sample_relay(relay_id=state.lease.relay_id, destination=SINK), lease=LEASE)
    state.is_stopping = True
    await rebalancer.run_once()
    assert (await store.registry(lease=LEASE)).owners == {}
    state.is_stopping = False
    await rebalancer.run_once()
    assert len((await store.registry(lease=LEASE)).owners[SINK]) == len(pipeline.lanes) == PARTITIONS


class _SlowStore(MemoryStore):
    """Lets no takeover end before a second one has begun. The first one of a destination called `down` fails."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.begun: list[str] = []
        self.both = asyncio.Event()

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        self.begun.append(destination)
        if len(self.begun) == 2:
            self.both.set()
        await self.both.wait()
        if destination == "down":
            raise StoreUnavailable("It is away.")
        return await super().take(relay_id, destination, partitions=partitions, lease=lease, claim_number=claim_number)


async def test_lanes_of_several_destinations_are_taken_side_by_side() -> None:
    clock = FrozenClock()
    store, lease, names = _SlowStore(clock), Lease(duration=LEASE), [SINK, "other", "down"]
    transport = MemoryTransport()
    states = {name: build_state(store, clock, lease=lease, name=name) for name in names}
    pipelines = {
        name: Pipeline(
            state, transport=transport, open_transport=lambda: transport,
            backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
        )
        for name, state in states.items()
    }  # fmt: skip
    rebalancer = Rebalancer(
        store, lease, pipelines, settings=RelaySettings(lease=LEASE), clock=clock, telemetry=Telemetry()
    )
    relay = replace(sample_relay(relay_id=lease.relay_id), destinations=names, reachable=names)
    await store.register(relay, lease=LEASE)
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable):
            await rebalancer.run_once()
    assert [len(pipelines[name].lanes) for name in names] == [PARTITIONS, PARTITIONS, 0]


class _CrowdedStore(MemoryStore):
    """Shows other numbers of relays at each look, as when a fleet starts."""

    def __init__(self, clock: FrozenClock, crowds: Sequence[int]) -> None:
        super().__init__(clock=clock)
        self._crowds = list(crowds)

    async def registry(self, *, lease: timedelta) -> Registry:
        real = await super().registry(lease=lease)
        crowd = self._crowds.pop(0) if len(self._crowds) > 1 else self._crowds[0]
        names = [f"d{number}" for number in range(crowd // 64)]
        others = [replace(sample_relay(), destinations=names, reachable=names) for _ in range(crowd // 100)]
        return replace(real, relays=[*real.relays, *others])

    async def registry_digest(self, *, lease: timedelta) -> object:
        return object()


class _Half(Random):
    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize(("crowds", "waits"), [((0,), 0.0), ((4_000, 8_000), 0.99), ((8_000, 0), 0.99)])
async def test_a_relay_among_many_that_start_waits_for_its_turn(crowds: Sequence[int], waits: float) -> None:
    """The crowd may grow while it waits; once the others have what they want, it waits no longer."""
    clock = FrozenClock()
    store = _CrowdedStore(clock, crowds)
    state, transport = build_state(store, clock), MemoryTransport()
    pipeline = Pipeline(
        state, transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip
    rebalancer = Rebalancer(
        store, state.lease, {SINK: pipeline}, settings=RelaySettings(lease=LEASE), clock=clock, telemetry=Telemetry(),
        dice=_Half(),
    )  # fmt: skip
    await store.register(sample_relay(relay_id=state.lease.relay_id, destination=SINK), lease=LEASE)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with patch("pillarbox.relay.membership.asyncio.sleep", sleep):
        await rebalancer.run_once()
    assert sum(slept) == pytest.approx(waits, abs=0.02)
    assert pipeline.lanes
