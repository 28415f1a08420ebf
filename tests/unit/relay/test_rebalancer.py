"""Rebalancer: it takes free lanes for a relay that runs, and none for one that stops."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.message import PARTITIONS
from pillarbox.relay.membership import Rebalancer
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample_relay
from tests.support.lanes.destination_bench import LEASE, SINK, build_state


async def test_a_relay_that_stops_takes_no_lanes() -> None:
    """It would hold them until it has drained, and serve none of them."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    state, transport = build_state(store, clock), MemoryTransport()
    pipeline = Pipeline(
        state, transport=transport, open_transport=lambda: transport,
        backoff=PollBackoff(poll_interval=timedelta(seconds=1)), settings=RelaySettings(lease=LEASE),
    )  # fmt: skip
    rebalancer = Rebalancer(
        store, state.lease, {SINK: pipeline}, settings=RelaySettings(lease=LEASE), clock=clock, telemetry=Telemetry()
    )
    await store.register(sample_relay(relay_id=state.lease.relay_id, destination=SINK), lease=LEASE)
    state.is_stopping = True
    await rebalancer.run_once()
    assert (await store.registry(lease=LEASE)).owners == {}
    state.is_stopping = False
    await rebalancer.run_once()
    assert len((await store.registry(lease=LEASE)).owners[SINK]) == len(pipeline.lanes) == PARTITIONS
