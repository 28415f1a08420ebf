"""Relays and consumers inside a web service, and the context of each request. For FastAPI, Starlette and any ASGI app.

Nothing here imports a framework: a lifespan and a middleware are plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, Self

from pillarbox.context import correlation, trace
from pillarbox.message import MAX_TEXT

__all__ = ["BackgroundRunner", "ContextMiddleware", "Runnable", "lifespan"]

log = logging.getLogger("pillarbox.asgi")

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
_CORRELATION_HEADERS: Final = (b"x-correlation-id", b"x-request-id")


class Runnable(Protocol):
    """A `Relay` or a `Consumer`."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...


class BackgroundRunner:
    """Runs relays and consumers in a thread with a loop of their own, while its block lasts.

    A request that keeps the web service's loop busy does not delay them, and they do not delay it. Each is created in
    that thread, by one of the functions, and stopped gracefully at the end. When one fails, the error is logged at
    once, the others are stopped, and the error is raised when the block ends.
    """

    def __init__(self, *factories: Callable[[], Runnable]) -> None:
        self._factories = factories
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runners: list[Runnable] = []
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pillarbox-beside", daemon=True)

    @property
    def is_running(self) -> bool:
        """True while they run: not before the start, after the end, or after one has failed."""
        return self._started.is_set() and self._thread.is_alive()

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
            log.exception("what runs beside the web service has failed")
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._runners = [create() for create in self._factories]
        self._started.set()
        tasks = [asyncio.create_task(runner.run()) for runner in self._runners]
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        self._stop()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _stop(self) -> None:
        for runner in self._runners:
            runner.stop()


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
