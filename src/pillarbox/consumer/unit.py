"""One transaction for accepting a message, handling it, and all that the handler writes and publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar, cast

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.transactions import Transactions
from pillarbox.consumer.verifying import Verifying
from pillarbox.context import handling
from pillarbox.errors import ConfigError
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox

__all__ = ["Unit"]

T = TypeVar("T")


class Unit:
    """Runs work in transactions of the consumer's database: on the loop, or in a thread if they are synchronous."""

    def __init__(self, inbox: Inbox, transactions: Transactions, *, threads: int) -> None:
        self.inbox = inbox
        self._transactions = transactions
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pillarbox-consumer")

    def close(self) -> None:
        """Wait for nobody: what runs in a thread cannot be stopped, and what it does is not acknowledged."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def check(self, handlers: Sequence[Handler]) -> None:
        """`ConfigError` for a handler that the transactions do not fit."""
        for handler in handlers:
            if handler.is_async and self._transactions.synchronous is not None:
                raise ConfigError(
                    f"The handler {handler.name} is async, and this consumer's transactions are not: make it a plain "
                    "function, or give the consumer an async_sessionmaker, an AsyncEngine or an async pool."
                )

    async def within(self, ask: Callable[[Any], Any]) -> Any:
        """The answer of the inbox to what is asked in a transaction of its own."""
        begin = self._transactions.asynchronous
        if begin is not None:
            async with begin() as tx:
                return await ask(tx)

        def work() -> Any:
            with self._begin() as tx:
                return ask(tx)

        return await self._in_thread(work)

    async def handle(self, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        """Accept, call the handlers, commit. False when it was a duplicate, which is counted."""
        begin = self._transactions.asynchronous
        if begin is None:
            return await self._in_thread(lambda: self._handled(event, payload, handlers))
        async with begin() as tx:
            if not await cast("Awaitable[bool]", self.inbox.accept(tx, event)):
                return False
            with handling(event), Verifying(tx) as verifying:
                await verifying.mark_async()
                for handler in handlers:
                    await self._call(handler, (payload, tx, event), tx)
                await verifying.check_async()
        return True

    def _handled(self, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        with self._begin() as tx:
            if not self.inbox.accept(tx, event):
                return False
            with handling(event), Verifying(tx) as verifying:
                verifying.mark()
                for handler in handlers:
                    handler.function(*(payload, tx, event)[: handler.takes])
                verifying.check()
        return True

    async def _call(self, handler: Handler, arguments: tuple[object, Any, CloudEvent], tx: Any) -> None:
        """A plain function in an async transaction: SQLAlchemy lends it the session's synchronous face."""
        if handler.is_async:
            await cast("Awaitable[object]", handler.function(*arguments[: handler.takes]))
        elif handler.takes == 1:
            await self._in_thread(lambda: handler.function(arguments[0]))
        elif hasattr(tx, "run_sync"):
            payload, _, event = arguments
            await tx.run_sync(lambda inner: handler.function(*(payload, inner, event)[: handler.takes]))
        else:
            raise ConfigError(
                f"The handler {handler.name} is a plain function, and its transaction must be awaited: make it async."
            )

    def _begin(self) -> Any:
        assert self._transactions.synchronous is not None  # noqa: S101 - one of the two is set
        return self._transactions.synchronous()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Carried over by hand: a StopIteration cannot be raised into a future, and would leave it waiting."""

        def caught() -> tuple[T | None, BaseException | None]:
            try:
                return work(), None
            except BaseException as error:
                return None, error

        assert self._pool is not None, "the unit is not open"  # noqa: S101
        result, error = await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, caught)
        if error is not None:
            raise error
        return cast("T", result)
