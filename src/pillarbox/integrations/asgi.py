"""In a web service: relays and consumers beside it, and the context of each request. FastAPI, Starlette, any ASGI.

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
from pillarbox.limits import MAX_TEXT

__all__ = ["Beside", "ContextMiddleware", "Runner", "lifespan"]

log = logging.getLogger("pillarbox.asgi")

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
_CORRELATION_HEADERS: Final = (b"x-correlation-id", b"x-request-id")


class Runner(Protocol):
    """A `Relay` or a `Consumer`."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...


class Beside:
    """Runs relays and consumers in a thread and loop of their own, for as long as its block lasts.

    A request that keeps the web service's loop busy does not hold them up, nor they it. Each is made in that thread, by
    the function given, and stopped gracefully at the end. One that ends with an error is logged at once, and takes
    the others with it; the error is raised when the block ends.
    """

    def __init__(self, *makers: Callable[[], Runner]) -> None:
        self._makers = makers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runners: list[Runner] = []
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pillarbox-beside", daemon=True)

    @property
    def is_running(self) -> bool:
        """False before it starts, after it stops, and when one of them has failed."""
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
            with contextlib.suppress(RuntimeError):  # it has ended by itself
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
        self._runners = [make() for make in self._makers]
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


def lifespan(*makers: Callable[[], Runner]) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan for `FastAPI(lifespan=...)` or `Starlette(lifespan=...)` that runs these beside the app."""

    @asynccontextmanager
    async def live(_: object) -> AsyncIterator[None]:
        async with Beside(*makers):
            yield

    return live


class ContextMiddleware:
    """What a request publishes belongs to it: its correlation id and its trace, from its headers.

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
            if (given := _correlation_of(headers)) is not None:
                context.enter_context(correlation(given))
            context.enter_context(trace(_text(headers, b"traceparent"), _text(headers, b"tracestate")))
            await self._app(scope, receive, send)


def _correlation_of(headers: Mapping[bytes, bytes]) -> str | None:
    """What cannot be a correlation id is no reason to refuse a request."""
    for name in _CORRELATION_HEADERS:
        text = _text(headers, name)
        if text is not None and 0 < len(text) <= MAX_TEXT and text.isprintable():
            return text
    return None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
