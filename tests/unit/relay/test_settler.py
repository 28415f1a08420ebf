"""Recording outcomes when one of the lanes is another's: that one's are dropped, and all others are recorded."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, Selection
from pillarbox.message import State
from pillarbox.relay.pipeline import Settler
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import SINK, build_state, grant, put


async def test_what_is_in_lanes_of_its_own_is_recorded_though_another_lane_was_lost() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    for partition in (0, 1):
        put(store, None, partition=partition)
    state = build_state(store, clock)
    await grant(state, 0, 1)
    partitions, _ = state.ordering.begin_read()
    reading = await store.read(SINK, partitions=partitions, cursor=None, limit=10)
    offer = state.ordering.accept_read(reading, partitions)
    number = state.lease.next_claim_number()
    await store.claim(state.fence(partitions), Claim(number, [message.id for message in offer.take]))
    state.ordering.confirm_claim(number, offer.take)
    state.ordering.mark_delivered(state.ordering.next_batch(10))
    await store.take(UUID(int=1), SINK, partitions=[0], lease=timedelta(seconds=10), claim_number=1)
    settler = Settler(state)
    assert [await settler.run_once() for _ in range(3)] == [True, True, False]
    (delivered,) = await store.find(Selection(states=[State.DELIVERED]), limit=10)
    assert (delivered.partition, list(state.epochs), state.ordering.in_flight) == (1, [1], 0)
