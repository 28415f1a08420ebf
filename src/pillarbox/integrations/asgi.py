"""Relays and consumers inside a web service, and the context of each request. For FastAPI, Starlette and any ASGI app.

Nothing here imports a framework: a lifespan and a middleware are plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, Self

from pillarbox.context import correlation, trace
from pillarbox.errors import ConfigError, PillarboxError, SchemaError, StoreForbidden
from pillarbox.message import MAX_TEXT
from pillarbox.redaction import format_traceback, redact_error
from pillarbox.retry import Backoff
from pillarbox.telemetry import current_store

__all__ = ["BackgroundRunner", "ContextMiddleware", "Runnable", "lifespan"]

log = logging.getLogger("pillarbox.asgi")

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
"""Seconds before a restart. What ran for longer than the longest wait starts with the first one again."""
_LONGEST_START: Final = 10.0
_START_INTERVAL: Final = 0.01
_CORRELATION_HEADERS: Final = (b"x-correlation-id", b"x-request-id")


class Runnable(Protocol):
    """A `Relay`, `Relays` or a `Consumer`. Its text is its name in the log.

    `is_started`, if it has one, holds the start up.
    """

    async def run(self) -> None: ...
    def stop(self) -> None: ...


class BackgroundRunner:
    """Runs relays and consumers in a thread with a loop of their own, while its block lasts.

    A request that keeps the web service's loop busy does not delay them, and they do not delay it. Each is created in
    that thread, by one of the functions, and stopped gracefully at the end. The block begins when all have started, or
    wait for a store or a broker that does not answer. An error that only a person can fix, such as missing tables, a
    missing right or a wrong setting, is raised there instead. When one fails later, a line in the log names it and the
    reason, the others go on, and it is created again and started, after a wait that doubles up to half a minute. If one
    is down when the block ends, its error is raised there.
    """

    def __init__(self, *factories: Callable[[], Runnable]) -> None:
        self._factories = factories
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._runners: dict[int, Runnable] = {}
        """Those that are running or about to, by the place of their factory."""
        self._down: dict[int, BaseException] = {}
        """Why those that wait for their restart have failed."""
        self._error: BaseException | None = None
        self._has_started = False
        self._started = threading.Event()
        """All have started, or the thread has ended."""
        self._thread = threading.Thread(target=self._main, name="pillarbox-beside", daemon=True)
        self._output = _Output()

    @property
    def is_running(self) -> bool:
        """True while all of them run: not before the start, after the end, or while one waits for its restart."""
        return self._started.is_set() and self._thread.is_alive() and not self._down

    async def __aenter__(self) -> Self:
        self._output.open()
        self._thread.start()
        await asyncio.to_thread(self._started.wait)
        if not self._has_started and self._error is not None:
            self._output.close()
            raise _shorten(self._error)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(self._stop)
        await asyncio.to_thread(self._thread.join)
        self._output.close()
        if self._error is not None:
            raise _shorten(self._error)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error
            if error not in self._down.values():
                log.error("%s", redact_error(error) if _needs_a_person(error) else format_traceback(error))
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._runners = {place: create() for place, create in enumerate(self._factories)}
        supervisors = [asyncio.create_task(self._supervise(place, self._stopping)) for place in self._runners]
        await self._wait_for_start()
        if self._has_started:
            self._started.set()
        else:
            self._stop()
        await asyncio.gather(*supervisors)
        for error in self._down.values():
            raise error

    async def _wait_for_start(self) -> None:
        """Return when all have started or failed, at the latest after some seconds: a web service must not hang."""
        give_up_at = time.monotonic() + _LONGEST_START
        while time.monotonic() < give_up_at:
            await asyncio.sleep(_START_INTERVAL)
            if any(map(_needs_a_person, self._down.values())):
                return
            if all(getattr(one, "is_started", True) for place, one in self._runners.items() if place not in self._down):
                break
        self._has_started = True

    async def _supervise(self, place: int, stopping: asyncio.Event) -> None:
        """Run one of them until it ends by itself or is stopped; start it again when it fails."""
        backoff, reported = _build_backoff(), ""
        while True:
            began_at = time.monotonic()
            try:
                await self._start(place)
            except (Exception, SystemExit) as error:
                error.add_note(f"From the {self._runners[place]}.")
                self._down[place] = error
            else:
                log.info("the %s has stopped", self._runners[place])
                return
            failure = self._down[place]
            if not self._has_started and _needs_a_person(failure):
                log.error("the %s does not start: %s", self._runners[place], redact_error(failure))
                return
            if stopping.is_set():
                return
            if time.monotonic() - began_at > _LONGEST_WAIT:
                backoff = _build_backoff()
            wait, reason = backoff.next_wait(), redact_error(failure)
            log.error("the %s has failed, starting it again in %.1f s: %s", self._runners[place], wait, reason)
            if not isinstance(failure, PillarboxError) and reason != reported:
                # Not an error of ours, so that its place is worth knowing; once, not with every restart.
                log.error("%s", format_traceback(failure))
            reported = reason
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), wait)
            if stopping.is_set():
                return

    async def _start(self, place: int) -> None:
        """Run one of them; after a failure it is created anew."""
        if place in self._down:
            self._runners[place] = self._factories[place]()
            del self._down[place]
        await self._runners[place].run()

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()
        for place, runner in self._runners.items():
            if place not in self._down:
                runner.stop()


class _LineFormat(logging.Formatter):
    """Level and message, with the name of the store where a process serves several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        store = current_store()
        mark = "" if store is None else f"[{store}] "
        return f"{record.levelname:<9} {mark}{record.message}"


class _Output:
    """Shows the log of Pillarbox from info on, on stderr, while nothing else does.

    Web servers such as uvicorn set up the logs of their own alone: without it nobody would see that a relay runs.
    """

    def __init__(self) -> None:
        self._log = logging.getLogger("pillarbox")
        self._handler: logging.Handler | None = None

    def open(self) -> None:
        if self._log.hasHandlers() or self._log.level != logging.NOTSET:
            return
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(_LineFormat())
        # An application that sets its logging up later takes over.
        self._handler.addFilter(lambda _: not logging.getLogger().handlers)
        self._log.addHandler(self._handler)
        self._log.setLevel(logging.INFO)

    def close(self) -> None:
        if self._handler is not None:
            self._log.removeHandler(self._handler)
            self._log.setLevel(logging.NOTSET)
            self._handler = None


def _needs_a_person(error: BaseException) -> bool:
    """Return whether starting again would not help: wrong settings, tables that do not fit, a missing right."""
    return isinstance(error, ConfigError | SchemaError | StoreForbidden)


def _shorten(error: BaseException) -> BaseException:
    """Return an error of ours without its frames and causes: its sentence says everything, and the log has it."""
    if not isinstance(error, PillarboxError):
        return error
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


def _build_backoff() -> Backoff:
    return Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=random.Random())  # noqa: S311


def lifespan(*factories: Callable[[], Runnable]) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Build a lifespan for `FastAPI(lifespan=...)` or `Starlette(lifespan=...)` that runs these with the app."""

    @asynccontextmanager
    async def run(_: object) -> AsyncIterator[None]:
        async with BackgroundRunner(*factories):
            yield

    return run


class ContextMiddleware:
    """Gives the messages that a request publishes its correlation id and its trace, from its headers.

    The correlation id is taken from `x-correlation-id`, or else `x-request-id`; without either, each message starts a
    chain of its own. Trust these headers only behind a proxy that sets them.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        with contextlib.ExitStack() as context:
            if (correlation_id := _find_correlation_id(headers)) is not None:
                context.enter_context(correlation(correlation_id))
            context.enter_context(trace(_read_text(headers, b"traceparent"), _read_text(headers, b"tracestate")))
            await self._app(scope, receive, send)


def _find_correlation_id(headers: Mapping[bytes, bytes]) -> str | None:
    # A header that cannot be a correlation id is ignored: it is no reason to refuse a request.
    for name in _CORRELATION_HEADERS:
        text = _read_text(headers, name)
        # A byte above 127 becomes two in UTF-8, and the limit is one of bytes.
        if text and text.isprintable() and len(text.encode()) <= MAX_TEXT:
            return text
    return None


def _read_text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
