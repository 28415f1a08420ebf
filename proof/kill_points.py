"""Kill points: a process kills itself with SIGKILL when its work reaches a named step for the nth time."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum, auto
from functools import wraps
from pathlib import Path
from typing import Any, Final, Self, cast

import msgspec

from pillarbox.contracts.store import Store
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.message import Message

__all__ = [
    "Call",
    "Kill",
    "KillPointBase",
    "KillRecord",
    "KillSwitch",
    "KillableTransport",
    "SendLimit",
    "Stage",
    "Step",
    "Survey",
    "make_store_killable",
]

_COMMENTS: Final = re.compile(r"--[^\n]*")
_WRITES: Final = ("insert", "update", "delete", "with")


class KillPointBase(Enum):
    """A named point. `dies` says where the process dies, `then` what must happen afterwards."""

    def __init__(self, dies: str, then: str) -> None:
        self.dies = dies
        self.then = then

    @property
    def title(self) -> str:
        """The name that people read and type: `claim-uncommitted`."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def find(cls, title: str) -> Self:
        """Return the point of that title; `KeyError` if there is none."""
        return cls[title.upper().replace("-", "_")]


class Stage(Enum):
    """How far a call has come."""

    CALLED = auto()
    HALFWAY = auto()
    """Some of its statements have run."""
    UNCOMMITTED = auto()
    """All of them have; the next one is COMMIT."""
    TAKEN = auto()
    """The consumer has the request, and its answer was not read."""
    ANSWERED = auto()
    """It is done, and the caller does not know yet."""

    @property
    def is_in_transaction(self) -> bool:
        return self in (Stage.HALFWAY, Stage.UNCOMMITTED)


class Call(msgspec.Struct):
    """One call of a store, a transport or a writer."""

    name: str
    args: Sequence[Any] = ()
    options: Mapping[str, Any] = {}
    result: Any = None
    """Set once it is answered."""
    writes: int = 0
    """How many statements that change rows it has run."""
    changed: int = 0
    """How many rows they changed."""
    recorded: int = 0
    """How many deliveries the process had recorded when it called."""


def _always(_: Call) -> bool:
    return True


class Step(msgspec.Struct, frozen=True):
    """Where a kill point is in the work: a call of this name, at this stage, for which `when` is true."""

    call: str
    stage: Stage
    when: Callable[[Call], bool] = _always
    writes: int = 1
    """After how many statements that change rows it is halfway."""

    def is_at(self, call: Call, stage: Stage) -> bool:
        # A call whose statements nobody counts is halfway when it says so.
        is_early = stage is Stage.HALFWAY and call.writes not in (0, self.writes)
        return self.call == call.name and self.stage is stage and not is_early and self.when(call)


class Kill(msgspec.Struct, frozen=True):
    """Which point a process dies at, at which of its occurrences, and the file that records it."""

    point: str
    nth: int
    file: str


class KillRecord(msgspec.Struct, frozen=True):
    """The content of that file."""

    point: str
    nth: int
    at: int
    """On the monotonic clock, in nanoseconds."""


class KillSwitch:
    """Follows the calls of one process, and kills it where `kill` and `step` say. Without a kill it does nothing."""

    def __init__(self, kill: Kill | None, step: Step | None) -> None:
        self._kill = kill
        self._step = step
        self._reached = 0
        self.recorded = 0
        """Deliveries recorded so far."""
        self.current: ContextVar[Call | None] = ContextVar("call", default=None)
        """The call that the running code works for."""

    def reach(self, stage: Stage, call: Call) -> None:
        """Note that a call has come this far. Does not return if the process dies here."""
        if self._step is not None and self._step.is_at(call, stage):
            self._reached += 1
            if self._kill is not None and self._reached >= self._kill.nth:
                _die(self._kill)

    def waits_for(self, stage: Stage) -> bool:
        """Return whether the process dies at such a stage."""
        return self._step is not None and self._step.stage is stage

    def on_statement(self, sql: str, *, changed: int = 0) -> None:
        """Note that a statement of the current call has run."""
        call = self.current.get()
        if call is not None and _COMMENTS.sub("", sql).lstrip().lower().startswith(_WRITES):
            call.writes += 1
            call.changed += changed
            self.reach(Stage.HALFWAY, call)

    def on_commit(self) -> None:
        """Note that the current call is about to commit."""
        call = self.current.get()
        if call is not None:
            self.reach(Stage.UNCOMMITTED, call)


class Survey(KillSwitch):
    """Kills nobody: appends the name of each point that the process reaches to a file."""

    def __init__(self, steps: Mapping[str, Step], file: Path) -> None:
        super().__init__(None, None)
        self._steps = dict(steps)
        """Those that were not reached yet."""
        self._file = file

    def reach(self, stage: Stage, call: Call) -> None:
        for name in [name for name, step in self._steps.items() if step.is_at(call, stage)]:
            del self._steps[name]
            with self._file.open("a") as file:
                file.write(f"{name}\n")

    def waits_for(self, stage: Stage) -> bool:
        return any(step.stage is stage for step in self._steps.values())


def _die(kill: Kill) -> None:
    record = KillRecord(kill.point, kill.nth, time.monotonic_ns())
    Path(kill.file).write_bytes(msgspec.json.encode(record))
    os.kill(os.getpid(), signal.SIGKILL)


def make_store_killable(store: Store, kill_switch: KillSwitch) -> Store:
    """Return the store with its calls followed by the kill switch."""
    return cast("Store", _KillableStore(store, kill_switch))


class _KillableStore:
    def __init__(self, store: Store, kill_switch: KillSwitch) -> None:
        self._store = store
        self._kill_switch = kill_switch

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        return self._wrap(name, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def _wrap(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        kill_switch = self._kill_switch

        @wraps(method)
        async def call_method(*args: Any, **options: Any) -> Any:
            call = Call(name, args, options, recorded=kill_switch.recorded)
            kill_switch.reach(Stage.CALLED, call)
            before = kill_switch.current.set(call)
            try:
                call.result = await method(*args, **options)
            finally:
                kill_switch.current.reset(before)
            if name == "settle":
                kill_switch.recorded += len(args[1].delivered)
            kill_switch.reach(Stage.ANSWERED, call)
            return call.result

        return call_method


class SendLimit:
    """Lets `limit` messages through and no more; their answers come together, after the last of them."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._entered = 0
        self._answered = 0
        self._all_answered = asyncio.Event()

    async def enter(self) -> None:
        """Return at once, or never if the limit is reached."""
        if self._limit is not None:
            self._entered += 1
            if self._entered > self._limit:
                await asyncio.Event().wait()

    async def leave(self) -> bool:
        """Return True for the last of them. The others wait for it."""
        if self._limit is None:
            return True
        self._answered += 1
        if self._answered < self._limit:
            await self._all_answered.wait()
            return False
        self._all_answered.set()
        return True


class KillableTransport:
    """A transport with its calls followed by the kill switch."""

    def __init__(
        self,
        transport: Transport,
        kill_switch: KillSwitch,
        *,
        read_accepted: Callable[[], Collection[str]] = tuple,
        send_limit: SendLimit | None = None,
    ) -> None:
        self._transport = transport
        self._kill_switch = kill_switch
        self._read_accepted = read_accepted
        """Returns the subjects that the consumer has accepted."""
        self._send_limit = send_limit or SendLimit()

    @property
    def features(self) -> TransportFeatures:
        return self._transport.features

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def ping(self) -> None:
        await self._transport.ping()
        self._kill_switch.reach(Stage.ANSWERED, Call("ping"))

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        call = Call("send", [messages])
        self._kill_switch.reach(Stage.CALLED, call)
        await self._send_limit.enter()
        send = self._send_watched if self._kill_switch.waits_for(Stage.TAKEN) else self._transport.send
        call.result = await send(messages)
        if await self._send_limit.leave():
            self._kill_switch.reach(Stage.ANSWERED, call)
        return cast("Sequence[Outcome]", call.result)

    async def _send_watched(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send, and look into the consumer's record until its answer comes."""
        sending = asyncio.ensure_future(self._transport.send(messages))
        subjects = {message.subject for message in messages}
        while not sending.done():
            if subjects.intersection(self._read_accepted()):
                self._kill_switch.reach(Stage.TAKEN, Call("send", [messages]))
            await asyncio.sleep(0.005)
        return await sending
