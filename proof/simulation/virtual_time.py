"""Virtual time: one timeline, clocks that disagree, and the event loop of a simulated process."""

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
"""Events at one time after which the timeline is taken to stand still."""


class Spinning(Exception):
    """Something runs on and on without letting time pass."""


class Runnable(Protocol):
    """Has work to do before time passes."""

    def run_ready(self) -> None:
        """Do all of it."""


class Timeline:
    """One queue for everything that happens: steps of relays, answers of stores and brokers, commits, faults."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runnable: list[Runnable] = []
        """Everything that has work to do at this time."""
        self.running: Runnable | None = None
        """The one that ran last."""
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self._is_over = False

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        """Call at that time. Calls for the same time are made in the order in which they were scheduled."""
        self._number += 1
        heappush(self._queue, (when, self._number, call, args))

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call in so many seconds."""
        self._number += 1
        heappush(self._queue, (self.now + seconds, self._number, call, args))

    def end(self) -> None:
        """End the run: nothing more happens."""
        self._is_over = True

    def run(self, *, until: float) -> None:
        """Let time pass until then, or until `end` is called."""
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
        """Set the clock forwards, or backwards with a negative number."""
        self._offset += by
        self.was_set = True

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._timeline.now + self._offset)

    def monotonic(self) -> float:
        return self._timeline.now


class ProcessClock:
    """The clock of a process: it runs a little faster or slower than the timeline, and shows another time."""

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
        """Return the time on the timeline at which this clock shows `when`."""
        return max(self._timeline.now, (when - self._offset) / self._rate)

    def reached(self, when: float) -> None:
        """Show at least this time: a timer for it went off, whatever rounding says."""
        self._least = max(self._least, when)


_MOST_STEPS: Final = 50_000
"""Steps at one time after which a process is taken to spin."""


_MANY_TASKS: Final = 200
_MOST_WAITS: Final = 20


class _Call:
    """A scheduled callback, with what asyncio expects of a handle."""

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
    """The event loop inside a simulated process. It can be frozen, and killed without running any cleanup."""

    def __init__(self, timeline: Timeline, clock: ProcessClock, *, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._on_error = on_error
        self._ready: deque[_Call] = deque()
        self._late: list[_Call] = []
        """Timers that went off while it was frozen."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.is_frozen = False
        self.is_dead = False

    # --- the interface that asyncio uses ---

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
        """Report an uncaught error as a bug, unless the process is dead."""
        if not self.is_dead:
            self._on_error(context)

    # --- run ---

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
        """Make this the running loop. It is a system call, so it is avoided where possible."""
        if self._timeline.running is not self:
            self._timeline.running = self
            events._set_running_loop(self)

    def run_ready(self) -> None:
        """Run every callback that is ready at this time."""
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

    # --- faults ---

    def freeze(self) -> None:
        """Make no step until thawed, as a stopped process or a migrated virtual machine."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on; every timer that should have gone off meanwhile goes off now."""
        self.is_frozen = False
        late, self._late = self._late, []
        self._ready.extend(call for call in late if not call.is_cancelled)
        if self._ready:
            self._timeline.runnable.append(self)

    def kill(self) -> None:
        """End it without another step. What its coroutines do while they are closed reaches no one."""
        self.is_dead = True
        self._ready.clear()
        self._enter()
        while self._tasks:
            task = self._tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close_coroutine(task.get_coro())
        self._ready.clear()


def _close_coroutine(coroutine: Any) -> None:
    """Close a coroutine; close it again where it awaits something in its cleanup."""
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
