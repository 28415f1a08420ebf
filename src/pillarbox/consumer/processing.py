"""Processing of one message: it is handled, suspended until its next attempt, or kept as failed."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.key_scheduler import PendingMessage
from pillarbox.consumer.settings import ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.consumer.unit_of_work import UnitOfWork
from pillarbox.decoding import encode_incoming
from pillarbox.errors import DecodeError
from pillarbox.events import decode
from pillarbox.handlers import Handler, Handlers
from pillarbox.redaction import redact_line
from pillarbox.retry import Backoff

__all__ = ["ErrorClass", "Processor", "classify_error"]


T = TypeVar("T")
_ALONE_FROM: Final = 2
"""The first redelivery of a message is handled like any other; from the second on it is handled alone."""
_CONFLICT_WAIT: Final = 0.02
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0
_FORGET_BATCH: Final = 1_000


class Processor:
    """Handles messages, one call each. The caller keeps the order."""

    def __init__(
        self,
        unit: UnitOfWork,
        handlers: Handlers,
        *,
        name: str,
        settings: ConsumerSettings,
        telemetry: ConsumerTelemetry,
        dice: random.Random,
    ) -> None:
        self._unit = unit
        self._handlers = handlers
        self._name = name
        self._settings = settings
        self._telemetry = telemetry
        self._dice = dice

    async def process(self, pending: PendingMessage) -> float | None:
        """Handle a message; return None if it can be acknowledged, else after how many seconds to try again.

        A wait of 0 means: try again alone, as soon as nothing else runs.
        """
        event = pending.event
        if event is None:
            await self._fail(pending, pending.decode_error or "it cannot be read")
            return None
        handlers = self._handlers.find(event)
        if not handlers:
            if self._settings.unknown == "ignore":
                self._telemetry.on_ignored(self._name, event)
            else:
                error = f"no handler wants the type {event.type} with topic {redact_line(event.topic)}"
                await self._fail(pending, error)
            return None
        if (pending.received.redelivered or pending.is_redriven) and not pending.is_started:
            deaths = await self._count_start(pending, event)
            if deaths >= self._settings.deaths:
                await self._fail(pending, f"the consumer died {deaths} times while it handled this message alone")
                return None
            if deaths >= 0:
                pending.is_alone = True
                return 0.0
        try:
            payload = decode(event, types=self._handlers.types)
        except DecodeError as error:
            await self._fail(pending, str(error))
            return None
        return await self._attempt(pending, event, payload, handlers)

    async def take_redriven(self, *, limit: int) -> Sequence[bytes]:
        """Take messages out of the inbox that a person redrove."""
        contents: Sequence[bytes] = await self._run(lambda tx: self._unit.inbox.redriven(tx, limit=limit))
        return contents

    async def forget_old(self) -> None:
        """Remove inbox records that are older than the dedup window, in small batches."""
        age, forgotten = self._settings.retention, _FORGET_BATCH
        while forgotten == _FORGET_BATCH:
            forgotten = await self._run(lambda tx: self._unit.inbox.forget(tx, older_than=age, limit=_FORGET_BATCH))

    async def _count_start(self, pending: PendingMessage, event: CloudEvent) -> int:
        """Count the start of a redelivered message; return how often it was handled alone, below 0 if not yet."""
        starts: int = await self._run(lambda tx: self._unit.inbox.start(tx, event))
        pending.is_started = True
        return starts - _ALONE_FROM

    async def _attempt(
        self, pending: PendingMessage, event: CloudEvent, payload: object, handlers: Sequence[Handler]
    ) -> float | None:
        began_at = time.monotonic()
        try:
            with self._telemetry.on_handling(self._name, event):
                is_new = await self._retry(lambda: self._unit.handle(event, payload, handlers), event=event)
        except (Exception, SystemExit) as error:
            return await self._note_failure(pending, event, error)
        if is_new:
            self._telemetry.on_handled(self._name, event, seconds=time.monotonic() - began_at)
        else:
            self._telemetry.on_duplicate(self._name, event)
        return None

    async def _note_failure(self, pending: PendingMessage, event: CloudEvent, error: BaseException) -> float | None:
        pending.attempts += 1
        reason = redact_line(f"{type(error).__name__}: {error}")
        if self._settings.retry.gives_up(pending.attempts):
            await self._fail(pending, reason)
            return None
        delay = self._settings.retry.delay(pending.attempts, dice=self._dice.random()).total_seconds()
        self._telemetry.on_retried(self._name, event, attempt=pending.attempts, error=reason, seconds=delay)
        return delay

    async def _fail(self, pending: PendingMessage, error: str) -> None:
        """Keep a message with the reason and its whole content. Only then may it be acknowledged."""
        identity, content = pending.event or pending.received.fallback, encode_incoming(pending.received)
        await self._run(
            lambda tx: self._unit.inbox.fail(tx, identity, error=error, attempts=pending.attempts, content=content)
        )
        self._telemetry.on_failed(self._name, pending.received.fallback, attempts=pending.attempts, error=error)

    async def _run(self, call: Callable[[Any], Any]) -> Any:
        """Call the inbox in its own transaction, with `_retry`."""
        return await self._retry(lambda: self._unit.run(call))

    async def _retry(self, call: Callable[[], Awaitable[T]], *, event: CloudEvent | None = None) -> T:
        """Repeat a transaction that conflicted with another, or whose database is away. Neither costs an attempt."""
        backoff = Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=self._dice)
        while True:
            try:
                return await call()
            except Exception as error:
                error_class = classify_error(error)
                if error_class is ErrorClass.FAILURE:
                    raise
                if error_class is ErrorClass.OUTAGE:
                    self._telemetry.on_store_failed(self._name, error)
                elif event is not None:
                    self._telemetry.on_conflict(self._name, event, error=redact_line(str(error)))
            if error_class is ErrorClass.CONFLICT:
                await asyncio.sleep(_CONFLICT_WAIT * self._dice.random())
            else:
                await asyncio.sleep(backoff.next_wait())


class ErrorClass(Enum):
    """Classes of errors: repeat at once, repeat when the database is back, or spend an attempt."""

    CONFLICT = "conflict"
    OUTAGE = "outage"
    FAILURE = "failure"


_CONFLICT_STATES: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available."""
_OUTAGE_STATES: Final = ("08", "53", "57P", "58", "25006")
"""Connection, resources, shutdown, system; and a server that became a replica."""
_BUSY: Final = frozenset({"SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY", "SQLITE_LOCKED"})
_MYSQL: Final = frozenset({"pymysql.err.MySQLError", "asyncmy.errors.MySQLError", "MySQLdb._exceptions.MySQLError"})
_MYSQL_CONFLICTS: Final = frozenset({1020, 1205, 1213, 3572})
"""Record changed, lock wait timeout, deadlock, lock not available."""
_MYSQL_OUTAGES: Final = frozenset({0, 1040, 1047, 1053, 1203, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
"""A driver's own "not connected"; then too many connections, not ready, shutdown, read-only, killed, lost, idle."""
_LOST: Final = frozenset(
    {
        "asyncpg.exceptions._base.InterfaceError",
        "asyncpg.exceptions.ConnectionDoesNotExistError",
        "psycopg_pool.errors.PoolTimeout",
        "psycopg_pool.errors.PoolClosed",
        "pillarbox.errors.StoreUnavailable",
    }
)


def classify_error(error: BaseException) -> ErrorClass:
    """Classify an error, by itself or by what it was raised from."""
    for link in _unwrap(error):
        if (found := _classify_one(link)) is not None:
            return found
    return ErrorClass.FAILURE


def _unwrap(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it wraps: SQLAlchemy's `orig`, or its cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        wrapped = getattr(link, "orig", None)
        link = wrapped if isinstance(wrapped, BaseException) else link.__cause__


def _classify_one(error: BaseException) -> ErrorClass | None:
    if getattr(error, "connection_invalidated", False):
        return ErrorClass.OUTAGE
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    if names & _MYSQL:  # before the SQLSTATE, which some of them have too: it is less precise than the number
        return _classify_mysql(error)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _classify_sqlstate(state)
    if isinstance(error, sqlite3.Error):
        return ErrorClass.CONFLICT if getattr(error, "sqlite_errorname", "") in _BUSY else None
    if names & _LOST:
        return ErrorClass.OUTAGE
    if "psycopg.OperationalError" in names:  # without a SQLSTATE: the connection failed
        return ErrorClass.OUTAGE
    return None


def _classify_sqlstate(state: str) -> ErrorClass | None:
    if state in _CONFLICT_STATES:
        return ErrorClass.CONFLICT
    return ErrorClass.OUTAGE if state.startswith(_OUTAGE_STATES) else None


def _classify_mysql(error: BaseException) -> ErrorClass | None:
    number = error.args[0] if error.args else None
    if number in _MYSQL_CONFLICTS:
        return ErrorClass.CONFLICT
    return ErrorClass.OUTAGE if number in _MYSQL_OUTAGES else None
