"""Processing of one message: it is handled, suspended until its next attempt, or kept as failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.key_scheduler import PendingMessage
from pillarbox.consumer.settings import ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry, log
from pillarbox.consumer.transaction_retry import Losses, TransactionRetry
from pillarbox.consumer.unit_of_work import CannotBegin, UnitOfWork
from pillarbox.contracts.receiver import FallbackIdentity
from pillarbox.decoding import encode_incoming, to_usable_id
from pillarbox.durations import FOREVER
from pillarbox.errors import DecodeError, StoreError
from pillarbox.events import decode
from pillarbox.handlers import Handler, Handlers
from pillarbox.redaction import find_place, format_traceback, redact_error, redact_line

__all__ = ["CannotKeep", "Processor"]

_ALONE_FROM: Final = 2
"""The first redelivery of a message is handled like any other; from the second on it is handled alone."""
_FORGET_BATCH: Final = 1_000
_MAX_REASON: Final = 600


class CannotKeep(StoreError):
    """The inbox refuses even a record of plain ASCII: no message is to blame, and the consumer cannot go on."""


class _Record(msgspec.Struct, frozen=True):
    """One way to record a message as failed."""

    identity: CloudEvent | FallbackIdentity
    error: str
    content: bytes | None
    is_plain: bool = False
    """Nothing but ASCII is in it."""


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
        self.telemetry = telemetry
        self._dice = dice
        self.is_stopping = False
        """The consumer stops, and cancels what takes too long."""
        self._retry = TransactionRetry(
            probe=unit.probe, dice=dice, on_outage=lambda error: self.telemetry.on_store_failed(name, error)
        )

    async def process(self, pending: PendingMessage) -> float | None:
        """Handle a message; return None if it can be acknowledged, else after how many seconds to try again.

        A wait of 0 means: try again alone, as soon as nothing else runs. Whatever goes wrong with one message, it is
        kept as failed. Raises `CannotBegin` and `CannotKeep` when the consumer cannot go on.
        """
        try:
            return await self._process(pending)
        except (CannotBegin, CannotKeep, asyncio.CancelledError):
            raise
        except Exception as error:
            # Neither the handler's nor the database's: a decoder, a telemetry or this code has a fault.
            await self._fail(pending, f"it could not be processed ({redact_error(error)})")
            return None

    async def _process(self, pending: PendingMessage) -> float | None:
        event = pending.event
        if event is None:
            await self._fail(pending, pending.decode_error or "it cannot be read")
            return None
        handlers = self._handlers.find(event)
        if not handlers:
            if self._settings.unknown == "ignore" and not pending.is_redriven:
                self.telemetry.on_ignored(self._name, event)
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
        """Remove inbox records that are older than their retention, in small batches."""
        keep, forgotten = self._settings, _FORGET_BATCH
        failed = None if keep.failed_retention == FOREVER else keep.failed_retention
        while forgotten >= _FORGET_BATCH:
            forgotten = await self._run(
                lambda tx: self._unit.inbox.forget(
                    tx, older_than=keep.retention, failed_older_than=failed, limit=_FORGET_BATCH
                )
            )

    async def _count_start(self, pending: PendingMessage, event: CloudEvent) -> int:
        """Count the start of a redelivered message; return how often it was handled alone, below 0 if not yet."""
        starts: int = await self._run(lambda tx: self._unit.inbox.start(tx, event), losses=pending.losses)
        pending.is_started = True
        return starts - _ALONE_FROM

    async def _attempt(
        self, pending: PendingMessage, event: CloudEvent, payload: object, handlers: Sequence[Handler]
    ) -> float | None:
        began_at = time.monotonic()
        try:
            with self.telemetry.on_handling(self._name, event):
                is_new = await self._retry.run(
                    lambda: self._unit.handle(event, payload, handlers),
                    losses=pending.losses,
                    on_conflict=lambda error: self.telemetry.on_conflict(self._name, event, error=redact_error(error)),
                )
        except (CannotBegin, KeyboardInterrupt, GeneratorExit):
            raise
        except asyncio.CancelledError as error:
            if self.is_stopping:
                raise
            # The handler awaited something that another cancelled, or it cancelled its own task.
            return await self._note_failure(pending, event, error, may_give_up=not _uncancel() or pending.attempts > 0)
        except BaseException as error:
            return await self._note_failure(pending, event, error)
        if is_new:
            self.telemetry.on_handled(self._name, event, seconds=time.monotonic() - began_at)
        else:
            self.telemetry.on_duplicate(self._name, event)
        return None

    async def _note_failure(
        self, pending: PendingMessage, event: CloudEvent, error: BaseException, *, may_give_up: bool = True
    ) -> float | None:
        pending.attempts += 1
        reason = redact_error(error)
        place = find_place(format_traceback(error))
        pending.place = f" (at {place})" if place else ""
        if may_give_up and self._settings.retry.gives_up(pending.attempts):
            await self._fail(pending, reason)
            return None
        delay = self._settings.retry.delay(pending.attempts, dice=self._dice.random()).total_seconds()
        self.telemetry.on_retried(
            self._name, event, attempt=pending.attempts, error=f"{reason}{pending.place}", seconds=delay
        )
        return delay

    async def _fail(self, pending: PendingMessage, error: str) -> None:
        """Keep a message with the reason and its whole content. Only then may it be acknowledged.

        What the inbox refuses is kept without its content, and at last under the digest of its id.
        """
        refusal: Exception | None = None
        for record in _list_records(pending, redact_line(error)):
            reason = record.error if refusal is None else _add_refusal(record, refusal)
            try:
                await self._record(pending, record, reason)
            except CannotBegin:
                raise
            except Exception as refused:
                refusal = refused
                continue
            self._report_failure(pending, reason)
            return
        raise CannotKeep(
            f"The inbox of {self._name} cannot record a failed message ({redact_error(refusal)}): check the rights "
            "of the consumer's login, see `pillarbox schema grants`."
        ) from refusal

    def _report_failure(self, pending: PendingMessage, error: str) -> None:
        try:
            self.telemetry.on_failed(
                self._name, _get_identity(pending), attempts=pending.attempts, error=f"{error}{pending.place}"
            )
        except Exception:
            log.exception("the telemetry of the consumer %s has failed", self._name)

    async def _record(self, pending: PendingMessage, record: _Record, reason: str) -> None:
        await self._run(
            lambda tx: self._unit.inbox.fail(
                tx, record.identity, error=reason, attempts=pending.attempts, content=record.content
            ),
            losses=Losses(),
        )

    async def _run(self, call: Callable[[Any], Any], *, losses: Losses | None = None) -> Any:
        """Call the inbox in its own transaction, and repeat that through conflicts and outages."""
        return await self._retry.run(lambda: self._unit.run(call), losses=losses)


def _get_identity(pending: PendingMessage) -> FallbackIdentity:
    """Return the identity that the inbox and earlier log lines have: that of the event, if it can be decoded."""
    event = pending.event
    if event is None:
        return pending.received.fallback
    return FallbackIdentity(
        message_id=event.message_id, source=event.source, type=event.type, topic=event.topic, key=event.key
    )


def _list_records(pending: PendingMessage, error: str) -> Iterator[_Record]:
    """List the ways to record a message, each with less of the message in it."""
    identity = pending.event or pending.received.fallback
    with suppress(TypeError, ValueError, OverflowError, RecursionError):  # it cannot be written as bytes
        yield _Record(identity, error, encode_incoming(pending.received))
    yield _Record(identity, error, None)
    plain = FallbackIdentity(
        message_id=to_usable_id(f"{identity.source}\0{identity.message_id}"), source="unstorable:", type="", topic=""
    )
    yield _Record(plain, "it cannot be stored", None, is_plain=True)


def _add_refusal(record: _Record, refusal: Exception) -> str:
    text = f"its content is not kept, because the database refused it: {redact_error(refusal)}"
    reason = redact_line(f"{record.error} ({text})", limit=_MAX_REASON)
    return reason.encode("ascii", "replace").decode() if record.is_plain else reason


def _uncancel() -> bool:
    """Take back that the running task is cancelled; return False if it was not. The loop may do so when it ends."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    while task.uncancel():
        pass
    return True
