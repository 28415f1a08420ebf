"""Lanes that the limits of the live relays leave over: an alert says so, on every store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pillarbox.message import State
from pillarbox.operations import alerts as alerts_module
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.monitor import Monitor
from tests.support.relay_behaviour.scene import Scene, Script, until


async def test_what_no_route_takes_is_closed_in_every_lane_all_the_same(scene: Scene) -> None:
    await scene.put(*[(number, f"key-{number}") for number in range(40)], topic="typo")
    async with scene.relay(Script(), settings=scene.quick(max_lanes=1)):
        await until(scene.is_drained)
    assert len(await scene.find(State.SKIPPED)) == 40


async def test_lanes_that_a_dead_relay_leaves_over_raise_an_alert(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "_TAKING_LANES", timedelta(0))
    monitor, settings = Monitor(scene.store), scene.quick(max_lanes=40)

    async def find() -> list[Alert]:
        return [one for one in find_alerts(await monitor.status(), Thresholds()) if one.name == "lanes"]

    async def has_free_lanes() -> bool:
        found = await find()
        return any("24 of the 64 lanes of sink have no owner" in one.what for one in found)

    async def has_none() -> bool:
        return not await find()

    async with scene.relay(Script(), settings=settings):
        await until(has_free_lanes)
        async with scene.relay(Script(), settings=settings):
            await until(has_none)
        await until(has_free_lanes)
