"""What is noticed in a whole world: writes of the dispossessed, losses, standstill, crashes, leases lost in calm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Claim, Fence, Settlement
from pillarbox.message import State
from pillarbox.relay.pipeline import Pipeline
from pillarbox.stores.memory import MemoryStore
from proof.simulation.checker import Breach
from proof.simulation.environment import Place
from proof.simulation.fault_kinds import FaultKind
from proof.simulation.process import simulated
from proof.simulation.scenario import Scenario
from proof.simulation.telemetry import RelayTelemetry
from proof.simulation.world import World, simulate

LEASE = timedelta(seconds=1)
QUIET = 3
"""A seed that ends well."""


@contextmanager
def ended() -> Iterator[World]:
    """A world that has come to its end, all well."""
    scenario = Scenario.drawn(QUIET)
    with simulated(scenario):
        world = World(scenario)
        world.run()
        assert world.result().faults == []
        yield world


def recounted(world: World) -> list[Breach]:
    world._count()
    return [fault.breach for fault in world.result().faults]


def test_a_message_that_is_gone_is_lost() -> None:
    with ended() as world:
        world._place.data.history.popitem()
        assert recounted(world) == [Breach.LOST]


def test_a_delivery_that_nobody_got_is_lost() -> None:
    with ended() as world:
        world._place.ledger.taken.clear()
        assert set(recounted(world)) == {Breach.LOST}


def test_a_message_that_is_still_open_is_stuck() -> None:
    with ended() as world:
        _, message = world._place.data.history.popitem()
        world._place.data.open.put(replace(message, state=State.PENDING))
        assert recounted(world) == [Breach.STUCK]


async def _dispossessed(place: Place) -> tuple[Fence, int]:
    """A relay that claimed something, and whose lane another one has taken since."""
    store, old, new = place.connect(), UUID(int=1), UUID(int=2)
    lanes, _ = await store.take(old, "a", partitions=[0], lease=LEASE, claim_number=1)
    fence = Fence(old, "a", {lane.partition: lane.epoch for lane in lanes})
    await store.claim(fence, Claim(5, [1]))
    await place.connect().take(new, "a", partitions=[0], lease=LEASE, claim_number=1)
    return fence, 5


async def test_a_write_of_a_relay_that_lost_its_lane_is_noticed_whatever_the_store_says() -> None:
    place = Place(Scenario.drawn(QUIET))
    fence, number = await _dispossessed(place)
    with patch.object(MemoryStore, "_check_fence", lambda store, fence: None):
        await place.connect().claim(fence, Claim(number + 1, [2]))
        await place.connect().settle(fence, Settlement(returned=[1], finished=[number]))
    assert [fault.breach for fault in place.ledger.faults] == [Breach.FENCE]


def test_a_relay_that_ends_by_an_error_is_noticed() -> None:
    async def broken(pipeline: Pipeline) -> None:
        raise ZeroDivisionError("a bug")

    with patch.object(Pipeline, "run", broken):
        faults = simulate(QUIET).faults
    assert faults[0].breach is Breach.CRASHED
    assert "ZeroDivisionError: a bug" in faults[0].text


@pytest.mark.parametrize(("calm_for", "noticed"), [(None, []), (1.0, []), (20.0, [Breach.STARVED])])
def test_a_lease_may_be_lost_in_the_storm_and_not_long_after_it(calm_for: float | None, noticed: list[Breach]) -> None:
    assert _lease_lost({FaultKind.FREEZE: 0.5}, calm_for=calm_for) == noticed


def test_a_lease_may_not_be_lost_in_a_storm_that_spares_the_leases() -> None:
    assert _lease_lost({FaultKind.KILL: 0.5, FaultKind.OUTAGE: 0.5}, calm_for=None) == [Breach.STARVED]


def _lease_lost(weather: dict[FaultKind, float], *, calm_for: float | None) -> list[Breach]:
    """What is said of it in such a storm, or so long after it."""
    place = Place(dataclasses.replace(Scenario.drawn(QUIET), weather=weather, rate_spread=0.0))
    place.timeline.now = 50.0
    place.calm_at = None if calm_for is None else 50.0 - calm_for
    RelayTelemetry("r1", place).on_lease_lost(reason="the lease ran out")
    return [fault.breach for fault in place.ledger.faults]
