"""Where a process of the chain dies, and what must be true afterwards. One name, one place, one sentence each."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import unique
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

import nats.aio.client

from pillarbox.brokers.rabbitmq.receiver import Consumer as RabbitmqConsumer
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.unit_of_work import UnitOfWork
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from proof.crash.points import Point as RelayPoint
from proof.crash.points import PointBase
from proof.crash.steps import Call, Stage, Step
from proof.kill_points import KillPoint

__all__ = ["RELAY_POINTS", "STEPS", "Point", "make_app_killable", "make_handler_killable", "wire"]


@unique
class Point(PointBase):
    """In a consumer. `then` is what must happen to the message in hand."""

    BEFORE_ACCEPT = (
        "before accept: the message is in hand, and nothing is written",
        "it comes again, and is handled then",
    )
    ACCEPTED = (
        "after accept: the inbox record is written and not committed",
        "the record is gone with the transaction; it comes again, and is handled then",
    )
    HANDLED = (
        "after the handler: its effect and what it published are written and not committed",
        "all of it is gone with the transaction; it comes again, and is handled then",
    )
    UNCOMMITTED = (
        "before commit: the next statement would be COMMIT",
        "all of it is gone with the transaction; it comes again, and is handled then",
    )
    COMMITTED = (
        "after commit, before the acknowledgement",
        "effect, record and messages are there; it comes again, and does nothing",
    )
    ACKNOWLEDGING = (
        "during the acknowledgement: the client has it, the broker not yet",
        "the same, if it comes again at all",
    )


RELAY_POINTS: Final = (RelayPoint.CLAIMED, RelayPoint.SEND_CALLED, RelayPoint.ANSWERED, RelayPoint.SETTLED)
"""Those of the crash matrix that the relays of the chain die at."""


def _is_new(call: Call) -> bool:
    """It is not a duplicate."""
    return call.result is True


STEPS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        Point.BEFORE_ACCEPT.title: Step("accept", Stage.CALLED),
        Point.ACCEPTED.title: Step("accept", Stage.ANSWERED, _is_new),
        Point.HANDLED.title: Step("handler", Stage.ANSWERED),
        Point.UNCOMMITTED.title: Step("handle", Stage.UNCOMMITTED, _is_new),
        Point.COMMITTED.title: Step("handle", Stage.ANSWERED, _is_new),
        Point.ACKNOWLEDGING.title: Step("acknowledge", Stage.HALFWAY),
    }
)
"""Where in the work each point is."""


_ACK = b"+ACK"
App = Callable[..., Awaitable[None]]


def wire(mine: KillPoint) -> None:
    """From here on every consumer of this process comes to its mine."""
    unit: Any = UnitOfWork
    inbox: Any = Inbox
    rabbitmq: Any = RabbitmqConsumer
    client: Any = nats.aio.client.Client
    unit.handle = _kill_at_handle(UnitOfWork.handle, mine)
    inbox.accept = _kill_at_accept(Inbox.accept, mine)
    rabbitmq.acknowledge = _kill_at_ack(rabbitmq.acknowledge, mine)
    client.publish = _kill_at_publish(client.publish, mine)


def _kill_at_handle(handle: Callable[..., Awaitable[bool]], mine: KillPoint) -> Callable[..., Awaitable[bool]]:
    @wraps(handle)
    async def mined(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        call = Call("handle")
        before = mine.current.set(call)
        try:
            new = await handle(unit, event, payload, handlers)
        finally:
            mine.current.reset(before)
        mine.at(Stage.ANSWERED, call)
        return new

    return mined


def _kill_at_accept(accept: Callable[..., Any], mine: KillPoint) -> Callable[..., Any]:
    """Whether the message is new is told to the call of `handle` that it belongs to."""

    def answered(new: bool) -> bool:
        mine.at(Stage.ANSWERED, Call("accept", result=new))
        handling = mine.current.get()
        if handling is not None:
            handling.result = new
        return new

    async def awaited(answer: Awaitable[bool]) -> bool:
        return answered(await answer)

    @wraps(accept)
    def mined(inbox: Inbox, tx: Any, message: Any) -> Any:
        mine.at(Stage.CALLED, Call("accept"))
        answer = accept(inbox, tx, message)
        return awaited(answer) if inspect.isawaitable(answer) else answered(answer)

    return mined


def make_handler_killable(handler: Callable[..., Any], mine: KillPoint) -> Callable[..., Any]:
    """A handler that is followed by a mine."""
    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def awaited(*given: Any) -> None:
            await handler(*given)
            mine.at(Stage.ANSWERED, Call("handler"))

        return awaited

    @wraps(handler)
    def called(*given: Any) -> None:
        handler(*given)
        mine.at(Stage.ANSWERED, Call("handler"))

    return called


# --- acknowledgements, in the hands of the broker's own client and not on their way yet ---


def _kill_at_ack(ack: Callable[..., Awaitable[Any]], mine: KillPoint) -> Callable[..., Awaitable[Any]]:
    @wraps(ack)
    async def mined(*given: Any, **options: Any) -> Any:
        # Before the call: what it writes is on its way at once.
        mine.at(Stage.HALFWAY, Call("acknowledge"))
        return await ack(*given, **options)

    return mined


def _kill_at_publish(publish: Callable[..., Awaitable[Any]], mine: KillPoint) -> Callable[..., Awaitable[Any]]:
    @wraps(publish)
    async def mined(client: Any, subject: str, payload: bytes = b"", *given: Any, **options: Any) -> Any:
        answer = await publish(client, subject, payload, *given, **options)
        if payload == _ACK:
            mine.at(Stage.HALFWAY, Call("acknowledge"))
        return answer

    return mined


def make_app_killable(app: App, mine: KillPoint) -> App:
    """An ASGI app whose answers come to a mine before they leave."""

    async def mined(scope: Any, receive: Any, send: Any) -> None:
        async def sending(event: Any) -> None:
            if event["type"] == "http.response.start" and event["status"] == 204 and scope["method"] == "POST":
                mine.at(Stage.HALFWAY, Call("acknowledge"))
            await send(event)

        await app(scope, receive, sending)

    return mined
