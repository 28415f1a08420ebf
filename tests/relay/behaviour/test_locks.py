"""Somebody holds a lock in the database: it costs waiting, and neither the lease nor a repeat."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from pillarbox.message import PARTITIONS
from tests.support.relay_behaviour.locks import hold
from tests.support.relay_behaviour.scene import Scene, Script, until

LEASE = timedelta(seconds=3)
LOCKED_FOR = 3 * LEASE.total_seconds()
"""The lease would end three times meanwhile."""
COUNT = 200

POSTGRES_LOCKS = {
    "history": "lock table pillarbox_history in share mode",  # as CREATE INDEX takes
    "history alone": "lock table pillarbox_history in access exclusive mode",
    "rows": "select from pillarbox_outbox for update",
    "lanes": "select from pillarbox_lane for update",
    "claims": "lock table pillarbox_claim in share mode",
}
MARIADB_LOCKS = {
    "history": "lock tables pillarbox_history write",  # metadata: as ALTER TABLE takes
    "rows": "select id from pillarbox_outbox for update",
    "lanes": "select relay_id from pillarbox_lane for update",
    "gap": "select id from pillarbox_history where id > 0 for update",
    "claims": "select number from pillarbox_claim for update",
}


@pytest.mark.parametrize("lock", sorted({*POSTGRES_LOCKS, *MARIADB_LOCKS}))
async def test_a_lock_costs_waiting_only(scene: Scene, lock: str) -> None:
    locks = MARIADB_LOCKS if scene.url.startswith("mysql") else POSTGRES_LOCKS
    if scene.url.startswith("sqlite") or lock not in locks:
        pytest.skip("This store has no such lock.")
    sink = Script()
    settings = scene.quick(lease=LEASE)
    async with scene.relay(sink, settings=settings, window=50, batch=10) as relay:
        await scene.put((0, "first"))
        await until(lambda: sink.numbers() == [0])
        relay_id = relay.relay_id
        sink.gate.clear()
        await scene.put(*[(number, f"key-{number % 20}") for number in range(1, COUNT)])
        await until(lambda: len(sink.under_way) > 10)
        async with hold(scene, locks[lock]):
            sink.gate.set()
            await until(lambda: len(sink.numbers()) > 10)  # acknowledged, and not to be settled
            await asyncio.sleep(LOCKED_FOR)
            assert relay.relay_id == relay_id, "the lease was lost"
        await until(scene.is_drained)
        assert relay.relay_id == relay_id, "the lease was lost"
    assert sorted(sink.numbers()) == list(range(COUNT)), "each was sent once"


async def test_a_lock_costs_another_relay_nothing(scene: Scene) -> None:
    """The lanes stay with the relay that waits: nobody takes over, and nothing is sent by two."""
    if scene.url.startswith("sqlite"):
        pytest.skip("This store has no such lock.")
    locks = MARIADB_LOCKS if scene.url.startswith("mysql") else POSTGRES_LOCKS
    sink = Script()
    settings = scene.quick(lease=LEASE)
    async with scene.relay(sink, settings=settings) as first, scene.relay(sink, settings=settings) as second:
        await scene.put(*[(number, f"key-{number}") for number in range(COUNT)])
        await until(lambda: len(sink.numbers()) == COUNT)
        ids = (first.relay_id, second.relay_id)

        async def is_shared() -> bool:
            owners = (await scene.store.registry(lease=LEASE)).owners.get("sink", {})
            return Counter(str(owner) for owner in owners.values()) == dict.fromkeys(ids, PARTITIONS // 2)

        await until(is_shared)  # a lane that is handed over waits for its settlements, and so for the lock
        async with hold(scene, locks["history"]):
            await scene.put(*[(number, f"key-{number}") for number in range(COUNT, 2 * COUNT)])
            await until(lambda: len(sink.numbers()) == 2 * COUNT)
            await asyncio.sleep(LOCKED_FOR)
        await until(scene.is_drained)
        assert (first.relay_id, second.relay_id) == ids
    assert sorted(sink.numbers()) == list(range(2 * COUNT)), "each was sent once"
