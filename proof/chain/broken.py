"""Mistakes that consumers make elsewhere, put in from outside. The chain must notice each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pillarbox import writers
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer
from pillarbox.consumer.key_scheduler import PendingMessage
from pillarbox.consumer.unit_of_work import UnitOfWork
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from pillarbox.outbox import Outbox
from proof.chain.kill_points import Point
from proof.messages import outbox

__all__ = ["BROKEN"]

_TURNS: Final = 50
"""Of the loop, until an acknowledgement has surely left."""


class Mistake(msgspec.Struct, frozen=True):
    """How to make it, where a death shows it, and what it comes to."""

    plant: Callable[[], None]
    point: Point
    shows: str
    """The count of the verdict that must not be zero."""


def _put(of: Any, **methods: Callable[..., Any]) -> None:
    """Methods in the place of the class's own."""
    for name, method in methods.items():
        setattr(of, name, method)


def _acknowledge_first() -> None:
    process = Consumer._process

    async def mistaken(consumer: Consumer, pending: PendingMessage) -> None:
        await consumer._receiver.acknowledge(pending.received)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await process(consumer, pending)

    _put(Consumer, _process=mistaken)


def _accept_apart() -> None:
    """The record commits before the work begins."""
    handle, accept = UnitOfWork.handle, Inbox.accept

    async def mistaken(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        if not await unit.run(lambda tx: accept(unit.inbox, tx, event)):
            return False
        return await handle(unit, event, payload, handlers)

    _put(UnitOfWork, handle=mistaken)
    _accept_all()


def _accept_all() -> None:
    """There is no inbox."""

    async def yes() -> bool:
        return True

    def mistaken(inbox: Inbox, tx: object, message: object) -> bool | Awaitable[bool]:
        return yes() if writers.is_async(tx) else True

    _put(Inbox, accept=mistaken)


def _publish_apart() -> None:
    """What is published commits before the work does."""
    handle, publish = UnitOfWork.handle, Outbox.publish

    async def mistaken(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        shop = outbox(unit.inbox.names)
        await unit.run(lambda tx: publish(shop, tx, payload))
        return await handle(unit, event, payload, handlers)

    async def nothing() -> None:
        pass

    def published(shop: Outbox, tx: object, event: object) -> Awaitable[None] | None:
        return nothing() if writers.is_async(tx) else None

    _put(UnitOfWork, handle=mistaken)
    _put(Outbox, publish=published)


BROKEN: Final[Mapping[str, Mistake]] = MappingProxyType(
    {
        "acknowledged-first": Mistake(_acknowledge_first, Point.HANDLED, "lost"),
        "accepted-apart": Mistake(_accept_apart, Point.HANDLED, "lost"),
        "no-inbox": Mistake(_accept_all, Point.COMMITTED, "twice"),
        "published-apart": Mistake(_publish_apart, Point.HANDLED, "twice"),
    }
)
"""By the name that people type."""
