"""The real consumer, with a mine in each step of its work. Nothing of the product knows of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

import aiormq.channel
import nats.aio.client

from crash.mine import Mine
from crash.steps import Call, Stage
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.unit import Unit
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox

__all__ = ["mined_app", "mined_handler", "wire"]

_ACK = b"+ACK"
App = Callable[..., Awaitable[None]]


def wire(mine: Mine) -> None:
    """From here on every consumer of this process comes to its mine."""
    unit: Any = Unit
    inbox: Any = Inbox
    channel: Any = aiormq.channel.Channel
    client: Any = nats.aio.client.Client
    unit.handle = _mined_handle(Unit.handle, mine)
    inbox.accept = _mined_accept(Inbox.accept, mine)
    channel.basic_ack = _mined_ack(channel.basic_ack, mine)
    client.publish = _mined_publish(client.publish, mine)


def _mined_handle(handle: Callable[..., Awaitable[bool]], mine: Mine) -> Callable[..., Awaitable[bool]]:
    @wraps(handle)
    async def mined(unit: Unit, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        call = Call("handle")
        before = mine.current.set(call)
        try:
            new = await handle(unit, event, payload, handlers)
        finally:
            mine.current.reset(before)
        mine.at(Stage.ANSWERED, call)
        return new

    return mined


def _mined_accept(accept: Callable[..., Any], mine: Mine) -> Callable[..., Any]:
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


def mined_handler(handler: Callable[..., Any], mine: Mine) -> Callable[..., Any]:
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


def _mined_ack(ack: Callable[..., Awaitable[Any]], mine: Mine) -> Callable[..., Awaitable[Any]]:
    @wraps(ack)
    async def mined(*given: Any, **options: Any) -> Any:
        answer = await ack(*given, **options)
        mine.at(Stage.HALFWAY, Call("acknowledge"))
        return answer

    return mined


def _mined_publish(publish: Callable[..., Awaitable[Any]], mine: Mine) -> Callable[..., Awaitable[Any]]:
    @wraps(publish)
    async def mined(client: Any, subject: str, payload: bytes = b"", *given: Any, **options: Any) -> Any:
        answer = await publish(client, subject, payload, *given, **options)
        if payload == _ACK:
            mine.at(Stage.HALFWAY, Call("acknowledge"))
        return answer

    return mined


def mined_app(app: App, mine: Mine) -> App:
    """An ASGI app whose answers come to a mine before they leave."""

    async def mined(scope: Any, receive: Any, send: Any) -> None:
        async def sending(event: Any) -> None:
            if event["type"] == "http.response.start" and event["status"] == 204 and scope["method"] == "POST":
                mine.at(Stage.HALFWAY, Call("acknowledge"))
            await send(event)

        await app(scope, receive, sending)

    return mined
