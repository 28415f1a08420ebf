"""What a broken connection means for the next answer: it is an attempt if something was sent, and else it is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.relay.dispatch import Dispatch
from pillarbox.relay.work import Work
from pillarbox.stores.memory import MemoryStore
from pillarbox.transports.memory import MemoryTransport
from tests.unit.relay.work_bench import claim_next, grant, put, work_on


class _Fickle(MemoryTransport):
    """Breaks the first time, when connecting or when sending, while another message is acknowledged; then refuses."""

    def __init__(self, work: Work, *, opens: bool) -> None:
        super().__init__()
        self._work = work
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
            self._work.judge.acknowledged += 1
            raise TransportUnavailable("the connection broke", mid_send=mid_send)


class _Place:
    """A relay with one message in the store, which is given back and claimed again as often as need be."""

    def __init__(self) -> None:
        clock = FrozenClock()
        self.store = MemoryStore(clock=clock)
        put(self.store, None)
        self.work = work_on(self.store, clock)

    async def claim(self, *, strikes: int = 0) -> Sequence[Message]:
        if not self.work.epochs:
            await grant(self.work, 0)
        self.work.core.reopen()
        return await claim_next(self.work, strikes=strikes)

    async def settle(self) -> list[int]:
        """Record what became of it. Answers what spent an attempt."""
        settlement, _ = self.work.core.settlement(10)
        await self.store.settle(self.work.fence([0]), settlement)
        self.work.core.settled(settlement)
        return [trouble.message_id for trouble in settlement.troubles]


@pytest.mark.parametrize(("opens", "spent"), [(False, []), (True, [1])], ids=["no connection", "sent"])
async def test_alone_it_is_weighed_from_the_last_time_it_was_sent(opens: bool, spent: list[int]) -> None:
    place = _Place()
    transport = _Fickle(place.work, opens=opens)
    dispatch = Dispatch(place.work, transport=transport, open_lone=lambda: transport, lone_cap=5)
    troubles: list[int] = []
    for _ in range(2):
        await place.claim(strikes=2)
        await dispatch._send_lone()
        troubles += await place.settle()
    assert troubles == spent


async def test_with_others_a_send_that_broke_makes_earlier_witnesses_too_old() -> None:
    """What was acknowledged before the connection broke does not show that the destination works now."""
    place, transport = _Place(), MemoryTransport()
    judge = place.work.judge
    dispatch = Dispatch(place.work, transport=transport, open_lone=lambda: transport, lone_cap=5)
    await transport.open()
    (message,) = await place.claim()
    judge.interrupted([message], began=0)
    judge.acknowledged += 1
    transport.cut_next()
    dispatch.send_ready()
    await dispatch.finish(within=60)
    assert await place.settle() == []
    place.work.breaker.close()
    transport.refuse_next()
    await place.claim()
    dispatch.send_ready()
    await dispatch.finish(within=60)
    assert await place.settle() == []
