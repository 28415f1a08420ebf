"""Calls one handler, so that however it ends, only the message is hurt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import cast

import msgspec

from pillarbox.handlers import Handler
from pillarbox.message import Message
from pillarbox.transports.redaction import one_line

__all__ = ["Failure", "call"]


class Failure(msgspec.Struct, frozen=True):
    """What a handler raised."""

    handler: Handler
    error: BaseException

    @property
    def text(self) -> str:
        said = f": {self.error}" if str(self.error) else ""
        return one_line(f"{self.handler.name} raised {type(self.error).__name__}{said}")


async def call(handler: Handler, event: object, message: Message, *, pool: ThreadPoolExecutor) -> Failure | None:
    """How it failed; None when it returned. Only the cancellation of the caller is let through."""
    arguments = (event, message)[: handler.takes]
    try:
        if handler.is_async:
            await cast("Awaitable[object]", handler.function(*arguments))
        else:
            await _in_thread(handler, arguments, pool)
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return Failure(handler, error)
    except (Exception, SystemExit) as error:
        # SystemExit too: a handler must not be able to end the relay.
        return Failure(handler, error)
    return None


async def _in_thread(handler: Handler, arguments: tuple[object, ...], pool: ThreadPoolExecutor) -> None:
    def caught() -> object:
        try:
            return handler.function(*arguments)
        except BaseException as error:
            # Carried over by hand: a StopIteration cannot be raised into a future, and would leave it waiting.
            return Failure(handler, error)

    result = await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, caught)
    if isinstance(result, Failure):
        raise result.error
    if inspect.isawaitable(result):
        await result


def _is_cancelled() -> bool:
    """Whether the one who called us is being cancelled, and not only something inside the handler."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
