"""The end of a process, laid out in advance: when the work comes to its step for the nth time, SIGKILL."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from pillarbox.contracts.store import Settlement, Store
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.message import Message
from proof.crash.consumer import Arrivals
from proof.crash.points import Point
from proof.crash.steps import STEPS, Call, Stage, Step

__all__ = ["Death", "KillPoint", "KillableTransport", "Once", "Trap", "make_killable"]

_COMMENTS: Final = re.compile(r"--[^\n]*")
_WRITES: Final = ("insert", "update", "delete", "with")


class Trap(msgspec.Struct, frozen=True):
    """Which point, at which of its occurrences, and the file that tells of the death."""

    point: str
    nth: int
    marker: str


class Death(msgspec.Struct, frozen=True):
    """What that file says."""

    point: str
    nth: int
    at: int
    """On the steady clock, in nanoseconds."""


class KillPoint:
    """Follows the calls of one process. Without a trap it does nothing. `step` is where, if the matrix does not say."""

    def __init__(self, trap: Trap | None, *, step: Step | None = None) -> None:
        self._trap = trap
        self._step = step if step is not None or trap is None else STEPS[Point.titled(trap.point)]
        self._passed = 0
        self.recorded = 0
        """Deliveries recorded so far."""
        self.current: ContextVar[Call | None] = ContextVar("call", default=None)
        """The call that the present code works for."""

    def at(self, stage: Stage, call: Call) -> None:
        """A call has come this far. Does not return where the trap is."""
        if self._step is not None and self._step.is_at(call, stage):
            self._passed += 1
            if self._trap is not None and self._passed >= self._trap.nth:
                _die(self._trap)

    def waits_for(self, stage: Stage) -> bool:
        """Whether the trap is at such a stage."""
        return self._step is not None and self._step.stage is stage

    def ran(self, sql: str, *, changed: int = 0) -> None:
        """A statement of the current call has run."""
        call = self.current.get()
        if call is not None and _COMMENTS.sub("", sql).lstrip().lower().startswith(_WRITES):
            call.writes += 1
            call.changed += changed
            if self._step is not None and call.writes == self._step.writes:
                self.at(Stage.HALFWAY, call)

    def commits(self) -> None:
        """The current call is about to commit."""
        call = self.current.get()
        if call is not None:
            self.at(Stage.UNCOMMITTED, call)


def _die(trap: Trap) -> None:
    death = Death(trap.point, trap.nth, time.monotonic_ns())
    Path(trap.marker).write_bytes(msgspec.json.encode(death))
    os.kill(os.getpid(), signal.SIGKILL)


def make_killable(store: Store, mine: KillPoint) -> Store:
    """The store itself, its calls followed from the first statement to the last."""
    return cast("Store", _KillableStore(store, mine))


class _KillableStore:
    def __init__(self, store: Store, mine: KillPoint) -> None:
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


class Once:
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


class KillableTransport:
    """The transport itself, its calls followed."""

    def __init__(self, transport: Transport, mine: KillPoint, *, arrivals: Path, turnstile: Once) -> None:
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
