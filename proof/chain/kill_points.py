"""The kill points of the chain: where a process dies, and what must be true afterwards."""

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
from proof.crash.points import KillPoint as RelayKillPoint
from proof.kill_points import Call, Kill, KillPointBase, KillSwitch, Stage, Step

__all__ = [
    "CONSUMER_STEPS",
    "RELAY_POINTS",
    "ConsumerKillPoint",
    "find_consumer_step",
    "hook_consumer",
    "make_app_killable",
    "make_handler_killable",
]


@unique
class ConsumerKillPoint(KillPointBase):
    """Where a consumer dies. `then` says what must happen to the message in hand."""

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


RELAY_POINTS: Final = (
    RelayKillPoint.CLAIMED,
    RelayKillPoint.SEND_CALLED,
    RelayKillPoint.ANSWERED,
    RelayKillPoint.SETTLED,
)
"""The kill points of the crash matrix that the relays of the chain die at."""


def _is_new(call: Call) -> bool:
    """Return whether the message is not a duplicate."""
    return call.result is True


CONSUMER_STEPS: Final[Mapping[ConsumerKillPoint, Step]] = MappingProxyType(
    {
        ConsumerKillPoint.BEFORE_ACCEPT: Step("accept", Stage.CALLED),
        ConsumerKillPoint.ACCEPTED: Step("accept", Stage.ANSWERED, _is_new),
        ConsumerKillPoint.HANDLED: Step("handler", Stage.ANSWERED),
        ConsumerKillPoint.UNCOMMITTED: Step("handle", Stage.UNCOMMITTED, _is_new),
        ConsumerKillPoint.COMMITTED: Step("handle", Stage.ANSWERED, _is_new),
        ConsumerKillPoint.ACKNOWLEDGING: Step("acknowledge", Stage.HALFWAY),
    }
)
"""Every kill point of a consumer has its step."""


def find_consumer_step(kill: Kill | None) -> Step | None:
    """Return the step of the point that a consumer dies at; None for one that does not."""
    return None if kill is None else CONSUMER_STEPS[ConsumerKillPoint.find(kill.point)]


_ACK = b"+ACK"
App = Callable[..., Awaitable[None]]


def hook_consumer(kill_switch: KillSwitch) -> None:
    """Have every consumer of this process report to the kill switch."""
    unit_of_work: Any = UnitOfWork
    inbox: Any = Inbox
    rabbitmq: Any = RabbitmqConsumer
    client: Any = nats.aio.client.Client
    unit_of_work.handle = _kill_at_handle(UnitOfWork.handle, kill_switch)
    inbox.accept = _kill_at_accept(Inbox.accept, kill_switch)
    rabbitmq.acknowledge = _kill_at_ack(rabbitmq.acknowledge, kill_switch)
    client.publish = _kill_at_publish(client.publish, kill_switch)


def _kill_at_handle(handle: Callable[..., Awaitable[bool]], kill_switch: KillSwitch) -> Callable[..., Awaitable[bool]]:
    @wraps(handle)
    async def killable(unit: UnitOfWork, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        call = Call("handle")
        before = kill_switch.current.set(call)
        try:
            new = await handle(unit, event, payload, handlers)
        finally:
            kill_switch.current.reset(before)
        kill_switch.reach(Stage.ANSWERED, call)
        return new

    return killable


def _kill_at_accept(accept: Callable[..., Any], kill_switch: KillSwitch) -> Callable[..., Any]:
    """Wrap `accept`. Whether the message is new becomes the result of the call of `handle` around it."""

    def on_answer(new: bool) -> bool:
        kill_switch.reach(Stage.ANSWERED, Call("accept", result=new))
        handling = kill_switch.current.get()
        if handling is not None:
            handling.result = new
        return new

    async def await_answer(answer: Awaitable[bool]) -> bool:
        return on_answer(await answer)

    @wraps(accept)
    def killable(inbox: Inbox, tx: Any, message: Any) -> Any:
        kill_switch.reach(Stage.CALLED, Call("accept"))
        answer = accept(inbox, tx, message)
        return await_answer(answer) if inspect.isawaitable(answer) else on_answer(answer)

    return killable


def make_handler_killable(handler: Callable[..., Any], kill_switch: KillSwitch) -> Callable[..., Any]:
    """Return a handler that reports to the kill switch when it is done."""
    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def handle_async(*args: Any) -> None:
            await handler(*args)
            kill_switch.reach(Stage.ANSWERED, Call("handler"))

        return handle_async

    @wraps(handler)
    def handle_sync(*args: Any) -> None:
        handler(*args)
        kill_switch.reach(Stage.ANSWERED, Call("handler"))

    return handle_sync


# --- acknowledgements that the client has, and the broker does not have yet ---


def _kill_at_ack(ack: Callable[..., Awaitable[Any]], kill_switch: KillSwitch) -> Callable[..., Awaitable[Any]]:
    @wraps(ack)
    async def killable(*args: Any, **options: Any) -> Any:
        # Before the call: what it writes is sent at once.
        kill_switch.reach(Stage.HALFWAY, Call("acknowledge"))
        return await ack(*args, **options)

    return killable


def _kill_at_publish(publish: Callable[..., Awaitable[Any]], kill_switch: KillSwitch) -> Callable[..., Awaitable[Any]]:
    @wraps(publish)
    async def killable(client: Any, subject: str, payload: bytes = b"", *args: Any, **options: Any) -> Any:
        answer = await publish(client, subject, payload, *args, **options)
        if payload == _ACK:
            kill_switch.reach(Stage.HALFWAY, Call("acknowledge"))
        return answer

    return killable


def make_app_killable(app: App, kill_switch: KillSwitch) -> App:
    """Return an ASGI app that reports to the kill switch before it answers."""

    async def killable(scope: Any, receive: Any, send: Any) -> None:
        async def send_killable(event: Any) -> None:
            if event["type"] == "http.response.start" and event["status"] == 204 and scope["method"] == "POST":
                kill_switch.reach(Stage.HALFWAY, Call("acknowledge"))
            await send(event)

        await app(scope, receive, send_killable)

    return killable
