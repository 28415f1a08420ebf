"""The real store and the real transport, with a mine in each call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, cast

from crash.arrivals import Arrivals
from crash.mine import Mine
from crash.steps import Call, Stage
from pillarbox.message import Message
from pillarbox.protocols import Outcome, Settlement, Store, Transport, TransportFeatures

__all__ = ["MinedTransport", "Turnstile", "mined_store"]


def mined_store(store: Store, mine: Mine) -> Store:
    """The store itself, its calls followed from the first statement to the last."""
    return cast("Store", _MinedStore(store, mine))


class _MinedStore:
    def __init__(self, store: Store, mine: Mine) -> None:
        self._store = store
        self._mine = mine

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        return self._followed(name, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def _followed(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        mine = self._mine

        @wraps(method)
        async def followed(*given: Any, **options: Any) -> Any:
            call = Call(name, given, options, recorded=mine.recorded)
            mine.at(Stage.CALLED, call)
            before = mine.current.set(call)
            try:
                call.result = await method(*given, **options)
            finally:
                mine.current.reset(before)
            if name == "settle":
                mine.recorded += _delivered(given[1])
            mine.at(Stage.ANSWERED, call)
            return call.result

        return followed


def _delivered(settlement: Settlement) -> int:
    return len(settlement.delivered)


class Turnstile:
    """Lets so many messages through and no more; their answers come together, after the last of them."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._passed = 0
        self._answered = 0
        self._all = asyncio.Event()

    async def enter(self) -> None:
        if self._most is not None:
            self._passed += 1
            if self._passed > self._most:
                await asyncio.Event().wait()

    async def leave(self) -> bool:
        """Answers whether this is the last of them. The others wait for it."""
        if self._most is None:
            return True
        self._answered += 1
        if self._answered < self._most:
            await self._all.wait()
            return False
        self._all.set()
        return True


class MinedTransport:
    """The transport itself, its calls followed."""

    def __init__(self, transport: Transport, mine: Mine, *, arrivals: Path, turnstile: Turnstile) -> None:
        self._transport = transport
        self._mine = mine
        self._arrivals = Arrivals(arrivals)
        self._turnstile = turnstile

    @property
    def features(self) -> TransportFeatures:
        return self._transport.features

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def ping(self) -> None:
        await self._transport.ping()
        self._mine.at(Stage.ANSWERED, Call("ping"))

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        call = Call("send", [messages])
        self._mine.at(Stage.CALLED, call)
        await self._turnstile.enter()
        send = self._watched if self._mine.waits_for(Stage.TAKEN) else self._transport.send
        call.result = await send(messages)
        if await self._turnstile.leave():
            self._mine.at(Stage.ANSWERED, call)
        return cast("Sequence[Outcome]", call.result)

    async def _watched(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Look into the consumer's record while the answer is out."""
        sending = asyncio.ensure_future(self._transport.send(messages))
        subjects = {message.subject for message in messages}
        while not sending.done():
            if subjects & {arrival.subject for arrival in self._arrivals.read() if arrival.is_accepted}:
                self._mine.at(Stage.TAKEN, Call("send", [messages]))
            await asyncio.sleep(0.005)
        return await sending
