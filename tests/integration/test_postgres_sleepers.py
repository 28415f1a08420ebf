"""Who sleeps is in a table that heartbeats leave alone, so that an insert costs the same however many there were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from pillarbox.clock import FrozenClock
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.samples import sample_relay

LEASE = timedelta(seconds=10)
BEAT = LEASE / 3
BEATS = 2_000
INSERT = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, payload, content_type, source,
                                  correlation_id, event_time)
    values (gen_random_uuid(), 'orders', 1, 'event', 't', 't', '', 'text/plain', '/', 'c', now())"""
TABLES = ("relay", "relay_pkey", "sleeper", "sleeper_pkey", "sleeper_until_idx")


class Scene:
    """A relay on a clock of its own that ends at the server's time, and a connection that sees all."""

    def __init__(self, store: PostgresStore, clock: FrozenClock, admin: Any, names: Names) -> None:
        self.store, self.clock, self.admin, self.names = store, clock, admin, names
        self.relay = replace(sample_relay(), asleep=True)

    async def beat(self, times: int, *, asleep: bool = True) -> None:
        """Register, and let heartbeats pass, the last of them now."""
        self.clock.jump(datetime.now(UTC) - times * BEAT)
        await self.store.register(self.relay, lease=LEASE)
        for number in reversed(range(times)):
            self.clock.jump(datetime.now(UTC) - number * BEAT)
            assert await self.store.renew(self.relay.relay_id, lease=LEASE, reachable=[], asleep=asleep)

    async def count_pages(self) -> dict[str, int]:
        """Return the pages of each table and index that the trigger of one insert reads."""
        each = ", ".join(f"pg_stat_get_xact_blocks_fetched('{self.names.table(name)}'::regclass)" for name in TABLES)
        async with self.admin.transaction():
            await self.admin.execute(self.names.qualify(INSERT))  # the plan is made once per session
            before = await self.admin.fetchrow(f"select {each}")
            await self.admin.execute(self.names.qualify(INSERT))
            after = await self.admin.fetchrow(f"select {each}")
        return {name: now - then for name, now, then in zip(TABLES, after, before, strict=True)}

    async def count_sleepers(self) -> int:
        count: int = await self.admin.fetchval(self.names.qualify("select count(*) from pillarbox_sleeper"))
        return count


@pytest.fixture
async def scene(postgres_url: str, postgres_schema: str) -> AsyncIterator[Scene]:
    names, clock = Names(postgres_schema), FrozenClock(datetime.now(UTC))
    await open_schema(parse_store_url(postgres_url), names=names).install()
    store = PostgresStore(postgres_url, schema=names.schema, clock=clock)
    admin: Any = await asyncpg.connect(postgres_url)
    await store.open()
    try:
        yield Scene(store, clock, admin, names)
    finally:
        await store.close()
        await admin.close()


@pytest.mark.parametrize("asleep", [True, False])
async def test_heartbeats_under_an_old_snapshot_cost_a_writer_nothing(
    scene: Scene, postgres_url: str, asleep: bool
) -> None:
    old: Any = await asyncpg.connect(postgres_url)
    try:
        async with old.transaction(isolation="repeatable_read"):
            await old.fetch("select 1")  # from now on no dead row can be removed
            await scene.beat(1, asleep=asleep)
            before = await scene.count_pages()

            await scene.beat(BEATS, asleep=asleep)

            after = await scene.count_pages()
            dead = await scene.admin.fetchval(f"select pg_relation_size('{scene.names.table('relay')}') / 8192")
            assert dead > 10, "the heartbeats left no dead rows"
    finally:
        await old.close()
    assert after["relay"] == after["relay_pkey"] == 0
    assert sum(after.values()) <= sum(before.values()) + 2


async def test_a_sleeper_is_written_once_a_minute(scene: Scene) -> None:
    await scene.beat(1)
    written: set[datetime] = set()
    for _ in range(10 * 60 // 3):  # ten minutes
        scene.clock.advance(timedelta(seconds=3))
        assert await scene.store.renew(scene.relay.relay_id, lease=LEASE, reachable=[], asleep=True)
        until = await scene.admin.fetchval(scene.names.qualify("select until from pillarbox_sleeper"))
        assert until >= scene.clock.now() + LEASE
        written.add(until)
    assert len(written) == 10


@pytest.mark.parametrize("how", ["awake", "leave", "forget", "take"])
async def test_who_sleeps_no_more_is_not_notified(scene: Scene, how: str) -> None:
    await scene.beat(1)
    assert await scene.count_sleepers() == 1
    relay_id = scene.relay.relay_id
    match how:
        case "awake":
            await scene.beat(1, asleep=False)
        case "leave":
            await scene.store.leave(relay_id)
        case "forget":
            scene.clock.advance(timedelta(hours=1))
            assert await scene.store.forget(stale_after=LEASE) == 1
        case _:
            await scene.store.take(relay_id, "orders", partitions=[1], lease=LEASE, claim_number=1)
            scene.clock.advance(timedelta(hours=1))
            other = sample_relay()
            await scene.store.register(other, lease=LEASE)
            lanes, _ = await scene.store.take(other.relay_id, "orders", partitions=[1], lease=LEASE, claim_number=1)
            assert len(lanes) == 1
    assert await scene.count_sleepers() == 0


async def test_a_relay_that_died_asleep_is_not_notified_for_ever(scene: Scene) -> None:
    notified: list[object] = []
    await scene.admin.add_listener("pillarbox", lambda *values: notified.append(values[-1]))
    await scene.beat(1)
    await scene.admin.execute(scene.names.qualify("update pillarbox_sleeper set until = now()"))

    await scene.admin.execute(scene.names.qualify(INSERT))
    await scene.admin.fetchval("select 1")

    assert not notified
