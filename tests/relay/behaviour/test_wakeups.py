"""A relay with nothing to do is woken by the writers, and asks for it only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from tests.support.relay_behaviour.scene import LEASE, Scene, Script, until
from tests.support.relay_behaviour.wire import Wire


def seldom(wire: Wire, scene: Scene, sink: Script) -> Relay:
    """A relay that by itself would look once an hour: nothing is found in time but by a wake-up."""
    settings = scene.quick(poll_interval=timedelta(hours=1))
    return Relay(wire.store, [Destination(lambda: sink, DestinationSettings(name="sink"))], settings=settings)


@pytest.fixture
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a relay wait for its whole poll interval from the first time on, and not only after a while."""
    monkeypatch.setattr("pillarbox.relay.polling._SHORTEST", timedelta(hours=1).total_seconds())


@pytest.mark.usefixtures("no_tick")
@pytest.mark.parametrize("scene", ["sqlite", "postgres", "psycopg", "mariadb"], indirect=True)
async def test_a_commit_wakes_an_idle_relay(scene: Scene) -> None:
    sink, wire = Script(), Wire(scene.open_store())
    async with seldom(wire, scene, sink):
        await until(lambda: wire.wakes)  # listening begins with one
        await scene.put((0, "a"))
        await until(lambda: sink.numbers() == [0])  # found when the lanes were taken, at the latest
        await until(scene.is_drained)
        await until(lambda: is_drowsy(scene))
        wakes = wire.wakes
        await scene.put((1, "a"))
        await until(lambda: wire.wakes > wakes)
        await until(lambda: sink.numbers() == [0, 1])


async def is_drowsy(scene: Scene) -> bool:
    """Whether the relay has said that it is asleep, where it has to say so."""
    registry = await scene.store.registry(lease=LEASE)
    asleep = [relay.asleep for relay in registry.relays]
    return asleep == [True] if scene.store.features.notifies else bool(asleep)


@pytest.mark.parametrize("scene", ["sqlite", "postgres", "psycopg", "mariadb"], indirect=True)
async def test_a_rollback_wakes_nobody(scene: Scene) -> None:
    sink, wire = Script(), Wire(scene.open_store())
    async with seldom(wire, scene, sink):
        await until(lambda: is_drowsy(scene))
        await scene.put((1, "a"), commit=False)
        await scene.put((2, "a"))
        await until(lambda: sink.numbers() == [2])


@asynccontextmanager
async def listening(scene: Scene) -> AsyncIterator[list[object]]:
    """What is notified about this test's tables."""
    heard: list[object] = []
    connection: Any = await asyncpg.connect(scene.url)
    try:
        oid = str(await connection.fetchval("select $1::regclass::oid", scene.names.table("outbox")))
        await connection.add_listener("pillarbox", lambda *said: heard.append(said[3]) if said[3] == oid else None)
        yield heard
    finally:
        await connection.close()


@pytest.mark.parametrize("scene", ["postgres"], indirect=True)
async def test_nobody_is_notified_while_no_relay_sleeps(scene: Scene) -> None:
    async with listening(scene) as heard:
        await scene.put((1, "a"), (2, "b"))
        assert await is_silent(scene, heard)
        async with scene.relay(Script()):
            await until(lambda: is_drowsy(scene))
            await scene.put((3, "a"))
            await until(lambda: heard)


@pytest.mark.parametrize("scene", ["postgres"], indirect=True)
async def test_a_relay_with_its_hands_full_asks_for_no_notifications(scene: Scene) -> None:
    """The destination is slow and the window full: a wake-up would cost the writers and help nobody."""
    sink = Script()
    sink.gate.clear()
    await scene.put(*[(number, None) for number in range(40)])
    full = scene.relay(sink, window=16, batch=8, send_timeout=timedelta(minutes=1))
    async with full, listening(scene) as heard:
        await until(lambda: len(sink.under_way) >= 15)
        await until(lambda: is_awake(scene))
        for number in range(40, 60):
            await scene.put((number, None))
            await asyncio.sleep(0.05)
            assert await is_awake(scene)
        assert await is_silent(scene, heard)
        sink.gate.set()
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == list(range(60))


async def is_awake(scene: Scene) -> bool:
    registry = await scene.store.registry(lease=LEASE)
    return [relay.asleep for relay in registry.relays] == [False]


async def is_silent(scene: Scene, heard: list[object]) -> bool:
    """Whether nothing was heard up to now: a notification of our own, sent last, arrives last."""
    connection: Any = await asyncpg.connect(scene.url)
    try:
        arrived = asyncio.Event()
        await connection.add_listener("pillarbox", lambda *said: arrived.set() if said[3] == "the end" else None)
        await connection.execute("select pg_notify('pillarbox', 'the end')")
        async with asyncio.timeout(10):
            await arrived.wait()
    finally:
        await connection.close()
    return not heard
