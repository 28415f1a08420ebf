"""Mistakes that a consumer could make, patched in from outside. The chain must notice each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pillarbox import writers
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer, transaction_retry
from pillarbox.consumer.key_scheduler import PendingMessage
from pillarbox.consumer.transaction_retry import TransactionRetry
from pillarbox.consumer.unit_of_work import UnitOfWork
from pillarbox.database_errors import ErrorClass, classify_error
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from pillarbox.outbox import Outbox
from proof.chain.kill_points import ConsumerKillPoint
from proof.messages import build_outbox

__all__ = ["BROKEN"]

_LOOP_TURNS: Final = 50
"""Turns of the event loop after which an acknowledgement has surely been sent."""


class Mistake(msgspec.Struct, frozen=True):
    """A mistake, the point at which a kill shows it, and the count that shows it."""

    apply: Callable[[], None]
    point: ConsumerKillPoint
    shows: str
    """The count of the verdict that must not be zero."""
    seconds: float = 200
    """How long a run may take that shows it. With some mistakes it would never be over."""


def _patch(owner: Any, **methods: Callable[..., Any]) -> None:
    """Replace methods of a class, or functions of a module."""
    for name, method in methods.items():
        setattr(owner, name, method)


def _acknowledge_before_commit() -> None:
    process = Consumer._process

    async def broken(consumer: Consumer, pending: PendingMessage) -> None:
        await consumer._receiver.acknowledge(pending.received)
        for _ in range(_LOOP_TURNS):
            await asyncio.sleep(0)
        await process(consumer, pending)

    _patch(Consumer, _process=broken)


def _accept_in_own_transaction() -> None:
    """Commit the inbox record before the work begins."""
    handle, accept = UnitOfWork.handle, Inbox.accept

    async def broken(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        if not await unit.run(lambda tx: accept(unit.inbox, tx, event)):
            return False
        return await handle(unit, event, payload, handlers)

    _patch(UnitOfWork, handle=broken)
    _disable_inbox()


def _disable_inbox() -> None:
    """Accept every message."""

    async def accept_all() -> bool:
        return True

    def broken(inbox: Inbox, tx: object, message: object) -> bool | Awaitable[bool]:
        return accept_all() if writers.is_async(tx) else True

    _patch(Inbox, accept=broken)


def _publish_in_own_transaction() -> None:
    """Commit what the handler publishes before its work commits."""
    handle, publish = UnitOfWork.handle, Outbox.publish

    async def broken(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        outbox = build_outbox(unit.inbox.names)
        await unit.run(lambda tx: publish(outbox, tx, payload))
        return await handle(unit, event, payload, handlers)

    async def do_nothing() -> None:
        pass

    def publish_nothing(outbox: Outbox, tx: object, event: object) -> Awaitable[None] | None:
        return do_nothing() if writers.is_async(tx) else None

    _patch(UnitOfWork, handle=broken)
    _patch(Outbox, publish=publish_nothing)


def _take_outage_for_failure() -> None:
    """Spend an attempt when the database is away."""
    _patch(transaction_retry, classify_error=lambda error: ErrorClass.FAILURE)


def _keep_slot() -> None:
    """Neither end nor give up a message whose transaction was lost: its slot is never free again."""
    run = TransactionRetry.run

    async def broken(retry: TransactionRetry, call: Callable[[], Awaitable[Any]], **options: Any) -> Any:
        async def call_once() -> Any:
            try:
                return await call()
            except Exception as error:
                if classify_error(error) is ErrorClass.OUTAGE:
                    await asyncio.Event().wait()
                raise

        return await run(retry, call_once, **options)

    _patch(TransactionRetry, run=broken)


BROKEN: Final[Mapping[str, Mistake]] = MappingProxyType(
    {
        "acknowledged-first": Mistake(_acknowledge_before_commit, ConsumerKillPoint.HANDLED, "lost"),
        "accepted-apart": Mistake(_accept_in_own_transaction, ConsumerKillPoint.HANDLED, "lost"),
        "no-inbox": Mistake(_disable_inbox, ConsumerKillPoint.COMMITTED, "twice"),
        "published-apart": Mistake(_publish_in_own_transaction, ConsumerKillPoint.HANDLED, "twice"),
        "outage-is-failure": Mistake(_take_outage_for_failure, ConsumerKillPoint.HANDLED, "lost"),
        "slot-kept": Mistake(_keep_slot, ConsumerKillPoint.HANDLED, "lost", seconds=45),
    }
)
"""By the name that `--broken` takes."""
