"""One round of the membership of a relay, among many relays and destinations and among few."""

from __future__ import annotations

import time
from datetime import timedelta
from statistics import median
from typing import Final
from uuid import UUID

from benchmarks.comparison import at_most, compare
from benchmarks.database import Admin, create_tables
from benchmarks.relay.runner import make_store
from pillarbox.message import PARTITIONS, Names
from pillarbox.relay.membership import compute_targets, plan_assignment
from pillarbox.stores.postgres.store import PostgresStore

__all__ = ["registry"]

_MANY: Final = (1_000, 20)
_FEW: Final = (10, 5)
"""Relays and destinations."""
_ROUNDS: Final = 20
_LEASE: Final = timedelta(hours=1)
_RELAYS: Final = """
    insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, started_at,
                                 expires_at, lease)
    select ('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid, 'shop', 'host', i, '0.1', d.names, d.names,
           now(), now() + interval '50 minutes', interval '1 hour'
      from generate_series(1, $1) as i,
           (select array_agg('destination-' || n) as names from generate_series(1, $2) as n) as d"""
_LANES: Final = """
    insert into pillarbox_lane (destination, partition, relay_id)
    select 'destination-' || n, p, ('00000000-0000-0000-0000-' || lpad((1 + (n * 64 + p) % $1)::text, 12, '0'))::uuid
      from generate_series(1, $2) as n, generate_series(0, 63) as p"""


async def registry() -> None:
    """`relay.registry`: a round with 1,000 relays and 20 destinations, against one with 10 and 5, in milliseconds."""
    async with (
        create_tables("pillarbox_bench_many") as (admin, many),
        create_tables("pillarbox_bench_few") as (_, few),
    ):
        for names, (relays, destinations) in ((many, _MANY), (few, _FEW)):
            await _fill(admin, names, relays, destinations)
        of_many, of_few = make_store(many), make_store(few)
        await of_many.open()
        await of_few.open()
        try:
            await compare(
                "relay.registry",
                ours=lambda: _measure(of_many),
                bare=lambda: _measure(of_few),
                target=at_most(20),
                settings={"relays": _MANY[0], "destinations": _MANY[1], "against": _FEW, "unit": "ms"},
                runs=9,
            )
        finally:
            await of_many.close()
            await of_few.close()


async def _fill(admin: Admin, names: Names, relays: int, destinations: int) -> None:
    await admin.execute(names.qualify(_RELAYS), relays, destinations)
    await admin.execute(names.qualify(_LANES), relays, destinations)
    await admin.execute(names.qualify("vacuum analyze pillarbox_relay"))
    await admin.execute(names.qualify("vacuum analyze pillarbox_lane"))


async def _measure(store: PostgresStore) -> float:
    """Return the milliseconds of a round: the registry is read, and the moves of one relay are planned."""
    me, seconds = UUID(int=1), []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        found = await store.registry(lease=_LEASE)
        targets = compute_targets(found, me)
        for name, target in targets.items():
            owners = found.owners.get(name, {})
            owned = [partition for partition in range(PARTITIONS) if owners.get(partition) == me]
            plan_assignment(owners, relay_id=me, owned=owned, target=target)
        seconds.append(time.perf_counter() - started)
    return 1_000 * median(seconds)
