"""Brings a fault about just when messages are under way: a transport that strikes, then sends through the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pillarbox.contracts.transport import Outcome, Transport
from pillarbox.message import Message
from tests.support.faults.faults import FarSide, Fault

__all__ = ["Strikes", "Striking"]

_PATIENCE = 60.0


class Strikes:
    """Strikes when enough messages are delivered. Shared by all the transports of one relay."""

    def __init__(self, fault: Fault, far: FarSide, *, after: Sequence[int]) -> None:
        self._fault = fault
        self._far = far
        self._after = list(after)
        self.delivered = 0
        self.done = 0
        """How many faults have come and gone."""
        self.felt = 0
        """How many of them a send felt: it raised, or not all of its messages were delivered."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def sent(self, send: Callable[[], Awaitable[Sequence[Outcome]]]) -> Sequence[Outcome]:
        """Send, and strike before that if it is time."""
        ended, is_struck = asyncio.Event(), bool(self._after) and self.delivered >= self._after[0]
        if is_struck:
            del self._after[0]
            await self._strike(ended)
        try:
            outcomes = await send()
        except Exception:
            self.felt += is_struck
            raise
        finally:
            ended.set()
        self.delivered += sum(outcome.delivered for outcome in outcomes)
        self.felt += is_struck and not all(outcome.delivered for outcome in outcomes)
        return outcomes

    async def finish(self) -> None:
        """Wait for the faults to be over, and raise what went wrong with them."""
        async with asyncio.timeout(_PATIENCE):
            await asyncio.gather(*self._tasks)

    async def _strike(self, ended: asyncio.Event) -> None:
        """The fault is there when this returns; it goes by itself. `ended`: the struck send has come back."""
        strike = {
            Fault.CUT_BEFORE: self._cut_before,
            Fault.CUT_AFTER: self._cut_after,
            Fault.RESTART: self._restart,
            Fault.HANG: self._hang,
            Fault.REFUSED: self._refuse,
        }[self._fault]
        ready = asyncio.Event()
        task = asyncio.create_task(self._carried_out(strike, ready, ended))
        self._tasks.add(task)
        await ready.wait()

    async def _carried_out(
        self,
        strike: Callable[[asyncio.Event, asyncio.Event], Awaitable[None]],
        ready: asyncio.Event,
        ended: asyncio.Event,
    ) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await strike(ready, ended)
            self.done += 1
        finally:
            ready.set()
            self._far.proxy.heal()

    async def _cut_before(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._far.proxy
        proxy.hang()
        proxy.requested.clear()
        ready.set()
        await proxy.requested.wait()
        proxy.cut()

    async def _cut_after(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._far.proxy
        proxy.drop_answers()
        proxy.answered.clear()
        ready.set()
        await proxy.answered.wait()
        proxy.cut()

    async def _restart(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._far.proxy
        proxy.drop_answers()  # so that something is under way when the broker dies
        proxy.requested.clear()
        ready.set()
        await proxy.requested.wait()
        await self._far.stop()
        proxy.heal()
        await self._far.start()

    async def _hang(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        self._far.proxy.hang()
        ready.set()
        await ended.wait()

    async def _refuse(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        await self._far.refuse()
        ready.set()
        await ended.wait()
        await self._far.allow()


class Striking:
    """The real transport, and the faults that befall it."""

    def __init__(self, transport: Transport, strikes: Strikes | None) -> None:
        self._transport = transport
        self._strikes = strikes
        self.features = transport.features

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def ping(self) -> None:
        await self._transport.ping()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if self._strikes is None:
            return await self._transport.send(messages)
        return await self._strikes.sent(lambda: self._transport.send(messages))
