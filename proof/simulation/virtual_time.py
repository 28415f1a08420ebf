"""Clocks that disagree: the store's, and one for each process."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Any, Final, Protocol

__all__ = ["EPOCH", "ProcessClock", "ProcessLoop", "Spinning", "StoreClock", "Timeline"]

_MOST_AT_ONCE: Final = 200_000
"""Events of one moment, after which time would never go on."""


class Spinning(Exception):
    """Something keeps itself busy without letting time go on."""


class Runnable(Protocol):
    """What has work of its own to do before time goes on."""

    def run_ready(self) -> None:
        """Do it all."""


class Timeline:
    """One queue for everything that happens: steps of relays, answers of stores and brokers, commits, faults."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runnable: list[Runnable] = []
        """Who has work to do at this moment."""
        self.running: Runnable | None = None
        """Who did the last of it."""
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self._is_over = False

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        """Call then; what is for the same moment is called in the order it was asked for."""
        self._number += 1
        heappush(self._queue, (when, self._number, call, args))

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call in so many seconds."""
        self._number += 1
        heappush(self._queue, (self.now + seconds, self._number, call, args))

    def end(self) -> None:
        """Nothing more is to happen."""
        self._is_over = True

    def run(self, *, until: float) -> None:
        """Let time go on until that moment, or its end."""
        queue, runnable = self._queue, self.runnable
        at_once = 0
        while queue and queue[0][0] <= until and not self._is_over:
            when, _, call, args = heappop(queue)
            if when > self.now:
                self.now, at_once = when, 0
            elif (at_once := at_once + 1) > _MOST_AT_ONCE:
                raise Spinning(f"time stands still at {self.now:.3f}")
            call(*args)
            while runnable:
                runnable.pop().run_ready()


EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class StoreClock:
    """The database's clock. It may be set forwards or backwards."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._offset = 0.0
        self.was_set = False

    def set(self, by: float) -> None:
        """Somebody corrects it."""
        self._offset += by
        self.was_set = True

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._timeline.now + self._offset)

    def monotonic(self) -> float:
        return self._timeline.now


class ProcessClock:
    """A process's clock: its seconds are a little longer or shorter, and its day is another."""

    def __init__(self, timeline: Timeline, *, rate: float, offset: float) -> None:
        self._timeline = timeline
        self._rate = rate
        self._offset = offset
        self._least = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        shown = self._timeline.now * self._rate + self._offset
        return shown if shown > self._least else self._least

    def virtual(self, when: float) -> float:
        """The moment at which this clock shows that."""
        return max(self._timeline.now, (when - self._offset) / self._rate)

    def reached(self, when: float) -> None:
        """A timer went off: whatever rounding says, the clock shows its time now."""
        self._least = max(self._least, when)


_MOST_STEPS: Final = 50_000
"""Steps of one moment, after which a process is taken to spin."""


_MANY_TASKS: Final = 200
_MOST_WAITS: Final = 20


class _Call:
    """A callback that waits for its turn. What asyncio expects of a handle."""

    __slots__ = ("args", "call", "context", "is_cancelled", "when_")

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None, when: float
    ) -> None:
        self.call = call
        self.args = args
        self.context = context
        self.is_cancelled = False
        self.when_ = when

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_


class ProcessLoop(asyncio.AbstractEventLoop):
    """What `asyncio` runs on inside a simulated process. It can be frozen, and killed without a last word."""

    def __init__(self, timeline: Timeline, clock: ProcessClock, *, told: Callable[[dict[str, Any]], None]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._told = told
        self._ready: deque[_Call] = deque()
        self._late: list[_Call] = []
        """Timers that went off while it was frozen."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.is_frozen = False
        self.is_dead = False

    # --- what asyncio asks for ---

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = _Call(callback, args, context, 0.0)
        if not self._ready and not self.is_frozen:
            self._timeline.runnable.append(self)
        self._ready.append(call)
        return call

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = _Call(callback, args, context, when)
        self._timeline.at(self._clock.virtual(when), self._due, call)
        return call

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self._clock.monotonic() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks.append(task)
        if len(self._tasks) > _MANY_TASKS:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody caught: a bug, unless the process is dead."""
        if not self.is_dead:
            self._told(context)

    # --- running ---

    def _due(self, call: _Call) -> None:
        if call.is_cancelled or self.is_dead:
            return
        if self.is_frozen:
            self._late.append(call)
            return
        self._clock.reached(call.when_)
        if not self._ready:
            self._timeline.runnable.append(self)
        self._ready.append(call)

    def _enter(self) -> None:
        """From here on `asyncio` finds this loop. Telling it so costs a system call."""
        if self._timeline.running is not self:
            self._timeline.running = self
            events._set_running_loop(self)

    def run_ready(self) -> None:
        """Every step that can be made at this moment."""
        if self.is_frozen or self.is_dead:
            return
        ready, steps = self._ready, 0
        self._enter()
        while ready:
            call = ready.popleft()
            if call.is_cancelled:
                continue
            if call.context is None:
                call.call(*call.args)
            else:
                call.context.run(call.call, *call.args)
            if (steps := steps + 1) > _MOST_STEPS:
                raise Spinning("a relay makes step after step without waiting for anything")

    # --- what the world does to it ---

    def freeze(self) -> None:
        """Make no step until thawed, as a stopped process or a virtual machine that moves."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on where it stood; every timer that should have gone off meanwhile does so now."""
        self.is_frozen = False
        late, self._late = self._late, []
        self._ready.extend(call for call in late if not call.is_cancelled)
        if self._ready:
            self._timeline.runnable.append(self)

    def kill(self) -> None:
        """No step more. What its coroutines would do on their way out reaches nobody."""
        self.is_dead = True
        self._ready.clear()
        self._enter()
        while self._tasks:
            task = self._tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _dispose_of(task.get_coro())
        self._ready.clear()


def _dispose_of(coroutine: Any) -> None:
    """Have it end now. Where it waits for something on its way out, it is told so again."""
    for _ in range(_MOST_WAITS):
        try:
            coroutine.close()
        except RuntimeError as ignored:
            if "GeneratorExit" not in str(ignored):
                return
        except BaseException:
            return
        else:
            return
