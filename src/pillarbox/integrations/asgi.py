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
from pillarbox.message import MAX_TEXT
from pillarbox.redaction import format_traceback
from pillarbox.retry import Backoff

__all__ = ["BackgroundRunner", "ContextMiddleware", "Runnable", "lifespan"]

log = logging.getLogger("pillarbox.asgi")

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
"""Seconds before a restart. What ran for longer than the longest wait starts with the first one again."""
_CORRELATION_HEADERS: Final = (b"x-correlation-id", b"x-request-id")


class Runnable(Protocol):
    """A `Relay` or a `Consumer`."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...


class BackgroundRunner:
    """Runs relays and consumers in a thread with a loop of their own, while its block lasts.

    A request that keeps the web service's loop busy does not delay them, and they do not delay it. Each is created in
    that thread, by one of the functions, and stopped gracefully at the end. When one fails, the error is logged at
    once, the others go on, and it is created again and started, after a wait that doubles up to half a minute. What is
    down when the block ends raises its error there.
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
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pillarbox-beside", daemon=True)

    @property
    def is_running(self) -> bool:
        """True while all of them run: not before the start, after the end, or while one waits for its restart."""
        return self._started.is_set() and self._thread.is_alive() and not self._down

    async def __aenter__(self) -> Self:
        self._thread.start()
        await asyncio.to_thread(self._started.wait)
        if not self._runners and self._error is not None:
            raise self._error
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(self._stop)
        await asyncio.to_thread(self._thread.join)
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error
            log.error("what runs beside the web service has failed\n%s", format_traceback(error))
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._runners = {place: create() for place, create in enumerate(self._factories)}
        self._started.set()
        await asyncio.gather(*(self._supervise(place, self._stopping) for place in self._runners))
        for error in self._down.values():
            raise error

    async def _supervise(self, place: int, stopping: asyncio.Event) -> None:
        """Run one of them until it ends by itself or is stopped; start it again when it fails."""
        backoff = _build_backoff()
        while True:
            began_at = time.monotonic()
            try:
                await self._start(place)
            except (Exception, SystemExit) as error:
                self._down[place] = error
            else:
                return
            if stopping.is_set():
                return
            if time.monotonic() - began_at > _LONGEST_WAIT:
                backoff = _build_backoff()
            wait = backoff.next_wait()
            log.error(
                "what runs beside the web service has failed, starting it again in %.1f s", wait,
                exc_info=self._down[place],
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), wait)
            if stopping.is_set():
                return

    async def _start(self, place: int) -> None:
        """Run one of them; after a failure it is created anew."""
        if self._down.pop(place, None) is not None:
            self._runners[place] = self._factories[place]()
        await self._runners[place].run()

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()
        for place, runner in self._runners.items():
            if place not in self._down:
                runner.stop()


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
        if text is not None and 0 < len(text) <= MAX_TEXT and text.isprintable():
            return text
    return None


def _read_text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
