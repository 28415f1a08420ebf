"""What the checkers notice in a whole run: fenced writes, losses, stuck messages, crashes, lost leases."""

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
from pillarbox.testing.samples import sample_relay
from proof.simulation.checker import Promise
from proof.simulation.environment import Environment
from proof.simulation.process import RelayTelemetry, patch_relay
from proof.simulation.scenario import FaultKind, Scenario
from proof.simulation.world import World, simulate

LEASE = timedelta(seconds=1)
QUIET = 3
"""A seed that ends well."""


@contextmanager
def run_world() -> Iterator[World]:
    """Run a seed that ends well."""
    scenario = Scenario.draw(QUIET)
    with patch_relay(scenario):
        world = World(scenario)
        world.run()
        assert world.result().violations == []
        yield world


def check_again(world: World) -> list[Promise]:
    world._check_messages()
    return [violation.promise for violation in world.result().violations]


def test_a_message_that_is_gone_is_lost() -> None:
    with run_world() as world:
        world._env.data.history.popitem()
        assert check_again(world) == [Promise.LOST]


def test_a_delivery_that_nobody_got_is_lost() -> None:
    with run_world() as world:
        world._env.deliveries.taken.clear()
        assert set(check_again(world)) == {Promise.LOST}


def test_a_message_that_is_still_open_is_stuck() -> None:
    with run_world() as world:
        _, message = world._env.data.history.popitem()
        world._env.data.open.put(replace(message, state=State.PENDING))
        assert check_again(world) == [Promise.STUCK]


async def _take_over(env: Environment) -> tuple[Fence, int]:
    """Let a relay claim something, and another one take its lane."""
    store, old, new = env.connect(), UUID(int=1), UUID(int=2)
    for relay_id in (old, new):
        await store.register(sample_relay(relay_id=relay_id, destination="a"), lease=timedelta(0))
    lanes, _ = await store.take(old, "a", partitions=[0], lease=LEASE, claim_number=1)
    fence = Fence(old, "a", {lane.partition: lane.epoch for lane in lanes})
    await store.claim(fence, Claim(5, [1]))
    await env.connect().take(new, "a", partitions=[0], lease=LEASE, claim_number=1)
    return fence, 5


async def test_a_write_of_a_relay_that_lost_its_lane_is_noticed_whatever_the_store_says() -> None:
    env = Environment(Scenario.draw(QUIET))
    fence, number = await _take_over(env)
    with patch.object(MemoryStore, "_check_fence", lambda store, fence: None):
        await env.connect().claim(fence, Claim(number + 1, [2]))
        await env.connect().settle(fence, Settlement(returned=[1], finished=[number]))
    assert [violation.promise for violation in env.deliveries.violations] == [Promise.FENCE]


def test_a_relay_that_ends_by_an_error_is_noticed() -> None:
    async def broken(pipeline: Pipeline) -> None:
        raise ZeroDivisionError("a bug")

    with patch.object(Pipeline, "run", broken):
        violations = simulate(QUIET).violations
    assert violations[0].promise is Promise.CRASHED
    assert "ZeroDivisionError: a bug" in violations[0].text


@pytest.mark.parametrize(("quiet_for", "noticed"), [(None, []), (1.0, []), (20.0, [Promise.STARVED])])
def test_a_lease_may_be_lost_during_faults_and_not_long_after_them(
    quiet_for: float | None, noticed: list[Promise]
) -> None:
    assert _lose_lease({FaultKind.FREEZE: 0.5}, quiet_for=quiet_for) == noticed


def test_a_lease_may_not_be_lost_by_faults_that_cannot_end_one() -> None:
    assert _lose_lease({FaultKind.KILL: 0.5, FaultKind.OUTAGE: 0.5}, quiet_for=None) == [Promise.STARVED]


def _lose_lease(fault_rates: dict[FaultKind, float], *, quiet_for: float | None) -> list[Promise]:
    """Lose a lease under such faults, or so long after them, and return the broken promises."""
    env = Environment(dataclasses.replace(Scenario.draw(QUIET), fault_rates=fault_rates, rate_spread=0.0))
    env.timeline.now = 50.0
    env.faults_ended_at = None if quiet_for is None else 50.0 - quiet_for
    RelayTelemetry("r1", env).on_lease_lost(reason="the lease ran out")
    return [violation.promise for violation in env.deliveries.violations]
