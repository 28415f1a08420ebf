"""Duties are switched one by one: a relay that only cleans owns no lane and sends nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Outbox
from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.store import Selection
from pillarbox.message import Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, Duty, RelaySettings, Retention
from pillarbox.stores.factory import open_schema
from pillarbox.stores.memory import MemoryData
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing import MemoryHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import HOUR, LANE, NEAR, close, own, put

_DEADLINE = 20


def _publish(path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        Outbox(routes="orders", source="/shop").publish(connection, {"order": 1}, type="orders.placed")
    connection.close()


def _relay(path: Path, transport: MemoryTransport, *duties: Duty, retention: Retention) -> Relay:
    settings = RelaySettings(
        lease=timedelta(seconds=1), poll_interval=timedelta(milliseconds=50), duties=duties, retention=retention
    )
    destination = Destination(lambda: transport, DestinationSettings(name="orders"))
    return Relay(SqliteStore(path), [destination], settings=settings)


async def _until_gone(store: SqliteStore) -> None:
    while await store.find(Selection(states=[State.DELIVERED]), limit=1):  # noqa: ASYNC110 - another process's doing
        await asyncio.sleep(0.02)


async def test_a_relay_that_only_cleans_sends_nothing_and_removes_what_is_old(tmp_sqlite: Path) -> None:
    await open_schema(parse_store_url(f"sqlite:///{tmp_sqlite}"), names=Names()).install()
    transport = MemoryTransport()
    _publish(tmp_sqlite)
    await _relay(tmp_sqlite, transport, Duty.SEND, Duty.RETRY, retention=Retention()).run(once=True)
    assert len(transport.received) == 1
    _publish(tmp_sqlite)

    every = Retention(delivered=timedelta(0), every=timedelta(milliseconds=20))
    cleaning = _relay(tmp_sqlite, transport, Duty.CLEAN, Duty.RECOVER, retention=every)
    store = SqliteStore(tmp_sqlite)
    await store.open()
    async with cleaning, asyncio.timeout(_DEADLINE):
        await _until_gone(store)
        # Longer than a lease: the heartbeat of a relay without lanes has to work too.
        await asyncio.sleep(1.2)
        registry = await store.registry(lease=timedelta(seconds=1))
        assert [relay.destinations for relay in registry.relays] == [[]]
        assert registry.owners == {}
    (waiting,) = await store.find(Selection(states=[State.PENDING]), limit=9)
    assert waiting.attempts == 0
    assert len(transport.received) == 1
    await store.close()


@pytest.mark.parametrize("duty", [Duty.CLEAN, Duty.RECOVER])
async def test_each_duty_does_its_own_work_alone(duty: Duty) -> None:
    """Cleaning removes old messages and inbox records; recovering removes relays that are gone."""
    data = MemoryData()
    harness = MemoryHarness(make_data=lambda: data)
    store = harness.store
    gone = sample_relay()
    await store.register(gone, lease=timedelta(0))
    (message,) = await put(harness, sample(key=NEAR))
    fence = await own(store, LANE)
    await close(store, fence, message, State.DELIVERED)
    await store.leave(fence.relay_id)
    await harness.accept("billing", "/shop", "1")
    nothing = timedelta(0)
    settings = RelaySettings(
        duties=[duty], stale_after=nothing, retention=Retention(delivered=nothing, inbox=nothing, every=HOUR)
    )
    destination = Destination(MemoryTransport, DestinationSettings(name="orders"))
    await Relay(store, [destination], settings=settings).run(once=True)
    does = (gone.relay_id not in data.relays, not data.history, not data.inbox)
    assert does == ((False, True, True) if duty is Duty.CLEAN else (True, False, False))
