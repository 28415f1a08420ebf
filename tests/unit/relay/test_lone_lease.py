"""A message that goes alone goes only while the lease holds, however long its connection takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.sender import Sender
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import LEASE, build_state, claim_next, grant, put


class _SlowToOpen(MemoryTransport):
    """Connecting takes as long as it is told."""

    def __init__(self, clock: FrozenClock, takes: timedelta) -> None:
        super().__init__()
        self._clock = clock
        self._takes = takes
        self.sent: list[int] = []

    async def open(self) -> None:
        await super().open()
        self._clock.advance(self._takes)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sent += [message.id for message in messages]
        return await super().send(messages)


async def _sent_alone(takes: timedelta) -> tuple[list[int], list[int]]:
    """What went out, and what was given back, of one message with two strikes."""
    clock = FrozenClock()
    store, transport = MemoryStore(clock=clock), _SlowToOpen(clock, takes)
    put(store, None)
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, strikes=2)
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await sender._send_lone()
    settlement, _ = state.ordering.next_settlement(10)
    return transport.sent, list(settlement.returned)


async def test_it_is_not_even_claimed_again_when_the_lease_is_over() -> None:
    state, sender, transport = await _ready(strikes=2)
    await sender._send_lone()
    assert (transport.received, state.ordering.has_lone) == ([], True)


async def test_what_was_claimed_is_not_sent_when_the_lease_is_over() -> None:
    """However long the process stood still between the two."""
    state, sender, transport = await _ready(strikes=0)
    sender.send_ready()
    await sender.finish(within=60)
    assert (transport.received, state.ordering.has_ready) == ([], True)


async def _ready(*, strikes: int) -> tuple[DestinationState, Sender, MemoryTransport]:
    """A message that is claimed and may go, and a lease that has ended since."""
    clock = FrozenClock()
    store, transport = MemoryStore(clock=clock), MemoryTransport()
    put(store, None)
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, strikes=strikes)
    clock.advance(LEASE)
    await transport.open()
    return state, Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5), transport


async def test_it_is_sent_when_the_connection_came_in_time() -> None:
    assert await _sent_alone(timedelta(seconds=1)) == ([1], [])


async def test_it_goes_back_when_the_lease_ended_before_the_connection_was_there() -> None:
    assert await _sent_alone(LEASE) == ([], [1])
