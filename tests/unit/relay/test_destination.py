"""State of a destination: when an outage is told and when its end, and for how long a write is repeated."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.errors import StoreUnavailable
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.lease import Lease
from pillarbox.relay.relay import Destination, Relay, SkipTransport
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from tests.support.lanes.destination_bench import LEASE, build_state


class _Told(Telemetry):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        self.calls.append("outage")

    def on_recovered(self, destination: str) -> None:
        self.calls.append("recovered")


def _state(clock: FrozenClock | None = None) -> tuple[DestinationState, list[str]]:
    clock = clock or FrozenClock()
    state = build_state(MemoryStore(clock=clock), clock)
    state.telemetry = told = _Told()
    return state, told.calls


def test_one_message_that_fails_again_and_again_is_no_outage() -> None:
    state, told = _state()
    for _ in range(3):
        state.open_breaker("refused", refused=[UUID(int=1)])
    assert told == []
    state.open_breaker("refused", refused=[UUID(int=2)])
    assert told == ["outage"]


def test_a_destination_that_cannot_be_reached_is_down_at_once() -> None:
    state, told = _state()
    state.open_breaker("no connection")
    state.open_breaker("no connection")
    assert told == ["outage"]


def test_a_ping_alone_does_not_end_an_outage_in_which_the_destination_answered() -> None:
    state, told = _state()
    for message_id in (1, 2):
        state.open_breaker("refused", refused=[UUID(int=message_id)])
    state.close_breaker(is_proven=False)
    assert told == ["outage"]
    state.close_breaker()
    assert told == ["outage", "recovered"]


def test_a_ping_ends_an_outage_in_which_nobody_was_there() -> None:
    state, told = _state()
    state.open_breaker("no connection")
    state.close_breaker(is_proven=False)
    assert told == ["outage", "recovered"]


async def test_a_write_is_repeated_until_the_lease_is_over() -> None:
    clock = FrozenClock()
    state, _ = _state(clock)
    writes = 0

    async def write() -> None:
        nonlocal writes
        writes += 1
        clock.advance(LEASE / 3 + timedelta(seconds=1))
        raise StoreUnavailable("away")

    async with asyncio.timeout(60):
        assert not await state.retry_write("settling", write)
    assert writes == 3


def test_a_key_has_an_eighth_of_the_window_and_a_quarter_where_it_goes_in_runs() -> None:
    relay = Relay(MemoryStore(), [Destination(SkipTransport)])
    shares = [
        relay._build_pipeline(Destination(make), Lease(duration=LEASE)).state.ordering.key_share
        for make in (SkipTransport, MemoryTransport)
    ]
    assert shares == [250, 500]


def test_a_window_that_grows_during_a_probe_grows_afterwards() -> None:
    """While a destination is down a few messages are read, of which one is sent: whatever the share of its store is."""
    state, _ = _state()
    state.resize(window=40, window_bytes=1_000)
    state.open_breaker("no connection")
    state.begin_probe()
    probing = state.ordering.window
    assert probing < 40
    state.resize(window=80, window_bytes=1_000)
    assert state.ordering.window == probing
    state.resize(window=2, window_bytes=1_000)
    assert state.ordering.window == 2
