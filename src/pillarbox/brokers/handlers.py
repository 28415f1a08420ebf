"""Handlers transport: in-process functions as a destination, an outbox for a service without a broker.

handlers = Handlers()

@handlers.on(OrderPlaced)
async def send_mail(event: OrderPlaced) -> None: ...
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from time import monotonic
from typing import Final, Literal, cast

import msgspec

from pillarbox.brokers.errors import not_open_error
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.brokers.settings import TransportUrl
from pillarbox.context import handling
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.database_errors import ErrorClass, classify_error
from pillarbox.errors import ConfigError, DecodeError, MessageRejected, TransportUnavailable
from pillarbox.events import decode
from pillarbox.handlers import Handler, Handlers
from pillarbox.message import Message
from pillarbox.redaction import format_traceback, redact_error, redact_line
from pillarbox.settings import parse_options
from pillarbox.user_code import import_object

__all__ = ["Handlers", "HandlersTransport", "handlers_transport"]

_RUN: Final = 100
"""Most messages of a key in one send."""
_RUN_SECONDS: Final = 0.02
"""Time after which no further message of a run is begun.

What was handled counts only when the send has answered. If the relay dies before, or a handler hangs, all of it is
handled again, so a run has no more than handlers do in a moment. One of a slow handler is one message.
"""

Unhandled = Literal["reject", "ignore"]
"""Fate of a message without a handler: it fails, or it counts as delivered."""


class HandlersTransport:
    """Delivers to the functions of a `Handlers` list. Delivered means that every one of them returned.

    All handlers of a message run, one after another, also after one that failed; a later attempt calls all of them
    again. Messages that they publish are caused by this message. Functions that are not async run in one of `threads`
    threads. The messages of a key are handled in order, up to the first that fails.
    """

    def __init__(self, handlers: Handlers, *, unhandled: Unhandled = "reject", threads: int = 16) -> None:
        self.features = TransportFeatures(name="handlers", batch=_RUN, runs=True, one_key=True, in_process=True)
        self._handlers = handlers
        self._unhandled = unhandled
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pillarbox-handler")

    async def close(self) -> None:
        """Close without waiting: a function in a thread cannot be stopped, and its message stays unanswered."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False, cancel_futures=True)

    async def ping(self) -> None:
        self._get_pool()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        begun: set[str | None] = set()
        ended: set[str | None] = set()
        until = monotonic() + _RUN_SECONDS
        for message in messages:
            key = message.key
            is_next = key in begun
            if is_next and (key in ended or monotonic() >= until):
                outcome = UNSENT
            else:
                try:
                    outcome = await self._send_one(message)
                except TransportUnavailable:
                    if not is_next:
                        raise
                    outcome = UNSENT  # the ones before it are answered for; as the first of the next send it raises
            if key is not None:
                begun.add(key)
            if not outcome.delivered:
                ended.add(key)
            outcomes.append(outcome)
        return outcomes

    async def _send_one(self, message: Message) -> Outcome:
        pool = self._get_pool()
        handlers = self._handlers.find(message)
        if not handlers:
            return self._handle_unhandled(message)
        try:
            event = decode(message, types=self._handlers.types)
        except DecodeError as error:
            return Outcome(delivered=False, rejected=True, error=redact_line(str(error)))
        with handling(message):
            failures = [failure for handler in handlers if (failure := await _call(handler, event, message, pool))]
        return _to_outcome(failures)

    def _get_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise not_open_error("handlers transport")
        return self._pool

    def _handle_unhandled(self, message: Message) -> Outcome:
        if self._unhandled == "ignore":
            return DELIVERED
        return Outcome(
            delivered=False,
            rejected=True,
            error=f"No handler wants the type {message.type} with topic {redact_line(message.topic)}; add one, "
            "or set unhandled=ignore.",
        )


class _Failure(msgspec.Struct, frozen=True):
    """A handler that raised, and its error."""

    handler: Handler
    error: BaseException

    @property
    def text(self) -> str:
        return f"{self.handler.name} raised {redact_error(self.error).removesuffix(':')}"


async def _call(handler: Handler, event: object, message: Message, pool: ThreadPoolExecutor) -> _Failure | None:
    """Call a handler; return None if it succeeded. Raises only if the caller itself is cancelled."""
    arguments = (event, message)[: handler.argument_count]
    try:
        if handler.is_async:
            await cast("Awaitable[object]", handler.function(*arguments))
        else:
            return await _call_in_thread(handler, arguments, pool)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 0:
            raise
        # Something inside the handler was cancelled, and not the caller.
        return _Failure(handler, error)
    except BaseException as error:
        # Not only `Exception`: a SystemExit must not end the relay, and what nobody catches answers for no message.
        return _Failure(handler, error)
    return None


async def _call_in_thread(handler: Handler, arguments: tuple[object, ...], pool: ThreadPoolExecutor) -> _Failure | None:
    def call() -> object:
        try:
            return handler.function(*arguments)
        except BaseException as error:
            # Returned and not raised: a future cannot carry a StopIteration, and would never be done.
            return _Failure(handler, error)

    result = await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, call)
    if isinstance(result, _Failure):
        return result
    if inspect.isawaitable(result):
        await result
    return None


def _to_outcome(failures: Sequence[_Failure]) -> Outcome:
    """Return the outcome of all handlers; raise `TransportUnavailable` if something that one of them needs is away.

    Errors of databases mean what they mean in a consumer: one that is away is an outage, and what conflicted with
    another transaction is tried again without an attempt. Everything else is the message's failure. An outage wins over
    a failure, a failure over a conflict, and a conflict over a rejection. So a handler that may still succeed gets the
    message again.
    """
    if not failures:
        return DELIVERED
    for failure in failures:
        if isinstance(failure.error, TransportUnavailable):
            raise failure.error
        if classify_error(failure.error) is ErrorClass.OUTAGE:
            raise TransportUnavailable(failure.text) from failure.error
    retriable = [failure for failure in failures if not isinstance(failure.error, MessageRejected)]
    own = [failure for failure in retriable if classify_error(failure.error) is not ErrorClass.CONFLICT]
    reported = own or retriable or failures
    return Outcome(
        delivered=False,
        rejected=not retriable,
        not_now=bool(retriable) and not own,
        error=redact_line("; ".join(failure.text for failure in reported)),
        detail="\n".join(format_traceback(failure.error) for failure in reported),
    )


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    unhandled: Unhandled = "reject"
    threads: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 1_000:
            raise ConfigError("The option threads of the handlers transport must be between 1 and 1000.")


def handlers_transport(url: TransportUrl) -> HandlersTransport:
    """Build the transport for `handlers:package.module:attribute`, where the attribute is a `Handlers`."""
    settings = parse_options(_Settings, url.options, transport="handlers")
    return HandlersTransport(_load_handlers(url.location), unhandled=settings.unhandled, threads=settings.threads)


def _load_handlers(location: str) -> Handlers:
    handlers = import_object(location, what="handlers", example="handlers:package.module:attribute")
    if not isinstance(handlers, Handlers):
        raise ConfigError(f"{location} is a {type(handlers).__name__}; it must be pillarbox.brokers.handlers.Handlers.")
    return handlers
