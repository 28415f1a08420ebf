"""What a broken connection means for the next answer: it is an attempt if something was sent, and else it is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.sender import Sender
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import build_state, claim_next, grant, put


class _Fickle(MemoryTransport):
    """Breaks the first time, when connecting or when sending, while another message is acknowledged; then refuses."""

    def __init__(self, state: DestinationState, *, opens: bool) -> None:
        super().__init__()
        self._state = state
        self._opens = opens
        self._is_broken = False

    async def open(self) -> None:
        await super().open()
        if not self._opens:
            self._break(mid_send=False)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._break(mid_send=True)
        return [Outcome(False, "503 Service Unavailable")]

    def _break(self, *, mid_send: bool) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._state.policy.acknowledged += 1
            raise TransportUnavailable("the connection broke", mid_send=mid_send)


class _Place:
    """A relay with one message in the store, which is given back and claimed again as often as need be."""

    def __init__(self) -> None:
        clock = FrozenClock()
        self.store = MemoryStore(clock=clock)
        put(self.store, None)
        self.state = build_state(self.store, clock)

    async def claim(self, *, strikes: int = 0) -> Sequence[Message]:
        if not self.state.epochs:
            await grant(self.state, 0)
        self.state.ordering.reopen()
        return await claim_next(self.state, strikes=strikes)

    async def settle(self) -> list[int]:
        """Record what became of it. Answers what spent an attempt."""
        settlement, _ = self.state.ordering.next_settlement(10)
        await self.store.settle(self.state.fence([0]), settlement)
        self.state.ordering.confirm_settlement(settlement)
        return [trouble.message_id for trouble in settlement.failures]


@pytest.mark.parametrize(("opens", "spent"), [(False, []), (True, [1])], ids=["no connection", "sent"])
async def test_alone_it_is_weighed_from_the_last_time_it_was_sent(opens: bool, spent: list[int]) -> None:
    place = _Place()
    transport = _Fickle(place.state, opens=opens)
    sender = Sender(place.state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    failures: list[int] = []
    for _ in range(2):
        await place.claim(strikes=2)
        await sender._send_lone()
        failures += await place.settle()
    assert failures == spent


async def test_with_others_a_send_that_broke_makes_earlier_witnesses_too_old() -> None:
    """What was acknowledged before the connection broke does not show that the destination works now."""
    place, transport = _Place(), MemoryTransport()
    policy = place.state.policy
    sender = Sender(place.state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await transport.open()
    (message,) = await place.claim()
    policy.note_interrupted([message], began=0)
    policy.acknowledged += 1
    transport.cut_next()
    sender.send_ready()
    await sender.finish(within=60)
    assert await place.settle() == []
    place.state.breaker.close()
    transport.refuse_next()
    await place.claim()
    sender.send_ready()
    await sender.finish(within=60)
    assert await place.settle() == []
