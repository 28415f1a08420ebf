"""Calls handlers, and answers for the messages as a broker would."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from pillarbox.codec import decode
from pillarbox.context import handling
from pillarbox.errors import ConfigError, DecodeError, MessageRejected, TransportUnavailable
from pillarbox.handlers import Handlers
from pillarbox.message import Message
from pillarbox.protocols import Outcome, TransportFeatures
from pillarbox.transports.handlers.calling import Failure, call
from pillarbox.transports.redaction import one_line, trace_of
from pillarbox.transports.settings import settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["HandlersTransport", "Unhandled", "handlers_transport"]

Unhandled = Literal["reject", "ignore"]
"""What becomes of a message that no handler wants: it fails, or it counts as delivered."""


class HandlersTransport:
    """Delivers to the functions of a `Handlers` list. Delivered means that every one of them returned.

    All handlers of a message run, one after another, also behind one that failed; a later attempt calls all of them
    again. What they publish is caused by the message. Functions that are not async run in one of `threads` threads.
    """

    def __init__(self, handlers: Handlers, *, unhandled: Unhandled = "reject", threads: int = 16) -> None:
        self.features = TransportFeatures(name="handlers", batch=1)
        self._handlers = handlers
        self._unhandled = unhandled
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pillarbox-handler")

    async def close(self) -> None:
        """Wait for nobody: a function in a thread cannot be stopped, and what it does goes unanswered."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False, cancel_futures=True)

    async def ping(self) -> None:
        self._opened()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [await self._deliver(message) for message in messages]

    async def _deliver(self, message: Message) -> Outcome:
        pool = self._opened()
        wanted = self._handlers.of(message)
        if not wanted:
            return self._nobody(message)
        try:
            event = decode(message, types=self._handlers.types)
        except DecodeError as error:
            return Outcome(delivered=False, rejected=True, error=one_line(str(error)))
        with handling(message):
            failures = [failure for handler in wanted if (failure := await call(handler, event, message, pool=pool))]
        return _answer(failures)

    def _opened(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise TransportUnavailable("The handlers transport is not open; call open() first.")
        return self._pool

    def _nobody(self, message: Message) -> Outcome:
        if self._unhandled == "ignore":
            return Outcome(delivered=True)
        return Outcome(
            delivered=False,
            rejected=True,
            error=f"No handler wants the type {message.type} with topic {one_line(message.topic)}; add one, "
            "or set unhandled=ignore.",
        )


def _answer(failures: Sequence[Failure]) -> Outcome:
    """An outage counts before a failure, and a failure before a rejection: whoever may still succeed is asked again."""
    if not failures:
        return Outcome(delivered=True)
    for failure in failures:
        if isinstance(failure.error, TransportUnavailable):
            raise failure.error
    ordinary = [failure for failure in failures if not isinstance(failure.error, MessageRejected)]
    told = ordinary or failures
    return Outcome(
        delivered=False,
        rejected=not ordinary,
        error=one_line("; ".join(failure.text for failure in told)),
        detail="\n".join(trace_of(failure.error) for failure in told),
    )


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    unhandled: Unhandled = "reject"
    threads: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 1_000:
            raise ConfigError("The option threads of the handlers transport must be between 1 and 1000.")


def handlers_transport(url: TransportUrl) -> HandlersTransport:
    """For `handlers:package.module:attribute`, where the attribute is a `Handlers`."""
    settings = settings_from(_Settings, url.options, transport="handlers")
    return HandlersTransport(_found(url.place), unhandled=settings.unhandled, threads=settings.threads)


def _found(place: str) -> Handlers:
    module, _, attribute = place.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{place!r} does not name handlers: write handlers:package.module:attribute.")
    try:
        handlers = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The handlers {place} cannot be loaded: {error}.") from error
    if not isinstance(handlers, Handlers):
        raise ConfigError(f"{place} is a {type(handlers).__name__}; it must be pillarbox.transports.handlers.Handlers.")
    return handlers
