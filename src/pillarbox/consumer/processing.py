"""What becomes of one message: handled, put off, or kept as failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from pillarbox.cloudevents import CloudEvent
from pillarbox.codec import decode
from pillarbox.consumer.causes import Cause, cause_of
from pillarbox.consumer.line import Piece
from pillarbox.consumer.settings import ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.consumer.unit import Unit
from pillarbox.errors import DecodeError
from pillarbox.handlers import Handler, Handlers
from pillarbox.receiving import kept
from pillarbox.transports.redaction import one_line

__all__ = ["Processing"]

T = TypeVar("T")
_ALONE_FROM: Final = 2
"""The first time that a message comes again it is handled as any other; from the second on, alone."""
_CONFLICT_WAIT: Final = 0.02
_SHORTEST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0


class Processing:
    """Handles messages, one call each. Whoever calls keeps the order."""

    def __init__(
        self,
        unit: Unit,
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

    async def process(self, piece: Piece) -> float | None:
        """None: it is done with, acknowledge it. A number: put it off for so many seconds, and its key with it."""
        event = piece.event
        if event is None:
            await self._fail(piece, piece.trouble or "it cannot be read")
            return None
        wanted = self._handlers.of(event)
        if not wanted:
            await self._unwanted(piece, event)
            return None
        if (piece.received.redelivered or piece.redriven) and not piece.started:
            deaths = await self._started(piece, event)
            if deaths >= self._settings.deaths:
                await self._fail(piece, f"the consumer died {deaths} times while it handled this message alone")
                return None
            if deaths >= 0:
                piece.alone = True
                return 0.0
        return await self._decoded(piece, event, wanted)

    async def _decoded(self, piece: Piece, event: CloudEvent, wanted: Sequence[Handler]) -> float | None:
        try:
            payload = decode(event, types=self._handlers.types)
        except DecodeError as error:
            await self._fail(piece, str(error))
            return None
        return await self._attempt(piece, event, payload, wanted)

    async def redriven(self, *, limit: int) -> Sequence[bytes]:
        """What a person wants handled again."""
        found: Sequence[bytes] = await self._carried_through(
            lambda: self._unit.within(lambda tx: self._unit.inbox.redriven(tx, limit=limit))
        )
        return found

    async def forget(self) -> None:
        """Remove records that are older than the dedup window, in small batches."""
        age, batch = self._settings.retention, 1_000
        while (
            await self._carried_through(
                lambda: self._unit.within(lambda tx: self._unit.inbox.forget(tx, older_than=age, limit=batch))
            )
            == batch
        ):
            pass

    async def _unwanted(self, piece: Piece, event: CloudEvent) -> None:
        if self._settings.unknown == "ignore":
            self._telemetry.ignored(self._name, event)
        else:
            await self._fail(piece, f"no handler wants the type {event.type} with topic {one_line(event.topic)}")

    async def _started(self, piece: Piece, event: CloudEvent) -> int:
        """Count the start of one that came before. Answers how often it was handled alone; below 0: it need not be."""
        starts: int = await self._carried_through(
            lambda: self._unit.within(lambda tx: self._unit.inbox.start(tx, event))
        )
        piece.started = True
        return starts - _ALONE_FROM

    async def _attempt(
        self, piece: Piece, event: CloudEvent, payload: object, wanted: Sequence[Handler]
    ) -> float | None:
        began = time.monotonic()
        try:
            with self._telemetry.handling(self._name, event):
                new = await self._carried_through(lambda: self._unit.handle(event, payload, wanted), event=event)
        except (Exception, SystemExit) as error:
            return await self._failed_once(piece, event, error)
        if new:
            self._telemetry.handled(self._name, event, seconds=time.monotonic() - began)
        else:
            self._telemetry.duplicate(self._name, event)
        return None

    async def _failed_once(self, piece: Piece, event: CloudEvent, error: BaseException) -> float | None:
        piece.attempts += 1
        told = one_line(f"{type(error).__name__}: {error}")
        if self._settings.retry.gives_up(piece.attempts):
            await self._fail(piece, told)
            return None
        delay = self._settings.retry.delay(piece.attempts, dice=self._dice.random()).total_seconds()
        self._telemetry.retried(self._name, event, attempt=piece.attempts, error=told, seconds=delay)
        return delay

    async def _fail(self, piece: Piece, error: str) -> None:
        """Keep it with the reason and all that came; only then is it acknowledged."""
        who, content = piece.event or piece.received.plain, kept(piece.received)
        await self._carried_through(
            lambda: self._unit.within(
                lambda tx: self._unit.inbox.fail(tx, who, error=error, attempts=piece.attempts, content=content)
            )
        )
        self._telemetry.failed(self._name, piece.received.plain, attempts=piece.attempts, error=error)

    async def _carried_through(self, ask: Callable[[], Awaitable[T]], *, event: CloudEvent | None = None) -> Any:
        """Repeat what met another transaction, and wait for a database that is away. Neither costs an attempt."""
        wait = _SHORTEST_WAIT
        while True:
            try:
                return await ask()
            except Exception as error:
                cause = cause_of(error)
                if cause is Cause.FAILURE:
                    raise
                if cause is Cause.OUTAGE:
                    self._telemetry.store_failed(self._name, error)
                elif event is not None:
                    self._telemetry.repeated(self._name, event, error=one_line(str(error)))
            if cause is Cause.CONFLICT:
                await asyncio.sleep(_CONFLICT_WAIT * self._dice.random())
            else:
                await asyncio.sleep(wait * (0.5 + self._dice.random() / 2))
                wait = min(2 * wait, _LONGEST_WAIT)
