"""Recording outcomes when one of the lanes is another's: that one's are dropped, and all others are recorded."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from pillarbox.clock import FrozenClock
from pillarbox.message import State
from pillarbox.protocols import Claim, Selection
from pillarbox.relay.settler import Settler
from pillarbox.stores.memory import MemoryStore
from tests.unit.relay.work_bench import SINK, grant, put, work_on


async def test_what_is_in_lanes_of_its_own_is_recorded_though_another_lane_was_lost() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    for partition in (0, 1):
        put(store, None, partition=partition)
    work = work_on(store, clock)
    await grant(work, 0, 1)
    partitions, _ = work.core.begin_reading()
    reading = await store.read(SINK, partitions=partitions, cursor=None, limit=10)
    offer = work.core.offer_read(reading, partitions)
    number = work.standing.next_claim()
    await store.claim(work.fence(partitions), Claim(number, [message.id for message in offer.take]))
    work.core.claimed(number, offer.take)
    work.core.delivered(work.core.batch(10))
    await store.take(UUID(int=1), SINK, partitions=[0], lease=timedelta(seconds=10), claim_number=1)
    settler = Settler(work)
    assert [await settler.run_once() for _ in range(3)] == [True, True, False]
    (delivered,) = await store.find(Selection(states=[State.DELIVERED]), limit=10)
    assert (delivered.partition, list(work.epochs), work.core.in_hand) == (1, [1], 0)
