"""An inbox for FastStream's subscribers. Needs the extra `faststream`."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pillarbox.cloudevents import AMQP, HTTP, KAFKA, NATS, Binding, CloudEvent
from pillarbox.consumer.causes import Cause, cause_of
from pillarbox.consumer.transactions import transactions_of
from pillarbox.consumer.unit import Unit
from pillarbox.errors import ConfigError, DecodeError, MissingExtra
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.identity import identity
from pillarbox.receiving import event_of

try:
    from faststream import BaseMiddleware
    from faststream.exceptions import AckMessage
    from faststream.message import SourceType
    from faststream.middlewares import AckPolicy
except ModuleNotFoundError as error:
    raise MissingExtra("faststream", extra="faststream", needed_for="The inbox of a FastStream subscriber") from error

if TYPE_CHECKING:
    from faststream import ContextRepo, StreamMessage

__all__ = ["InboxMiddleware"]

_log: Final = logging.getLogger(__name__)
_ANYTHING: Final = re.compile("")
_TRIES: Final = 10
"""How often a transaction that met another is begun, before it counts as failed."""
_CONFLICT_WAIT: Final = 0.1
_BINDINGS: Final = (AMQP, KAFKA, NATS)


class InboxMiddleware:
    """Every message that a broker's or router's subscribers handle is handled once in effect.

    One transaction accepts the message, runs the handler, and holds all that it writes and publishes by the outbox;
    then FastStream acknowledges. A duplicate is acknowledged without calling the handler. When the handler raises,
    all is rolled back, and FastStream does what its policy says.

        broker = RabbitBroker(middlewares=[InboxMiddleware("billing", database=async_sessionmaker(engine))])

        @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
        async def bill(order: Order, session: Annotated[AsyncSession, Context("transaction")]) -> None: ...

    Each subscriber is a consumer of its own in the inbox: `billing.Bill`.
    """

    def __init__(self, name: str, *, database: object, schema: str | None = None, prefix: str = "pillarbox_") -> None:
        self._name = name
        self._schema = schema
        self._prefix = prefix
        self._transactions = transactions_of(database)
        self._units: dict[str, Unit] = {}
        if self._transactions.asynchronous is None:
            raise ConfigError(
                "The inbox of FastStream's subscribers needs transactions that are awaited: give an "
                "async_sessionmaker, an AsyncEngine, a pool of asyncpg, asyncmy or aiomysql, or psycopg's "
                "AsyncConnectionPool."
            )
        Inbox(name, schema=schema, prefix=prefix)  # so that wrong names are told now

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> BaseMiddleware[Any, Any]:
        """What FastStream asks for with each message."""
        return _Handling(msg, context=context, unit_of=self._unit)

    def _unit(self, subscriber: Any) -> Unit:
        name: str = subscriber.specification.call_name
        if name not in self._units:
            inbox = Inbox(f"{self._name}.{name}", schema=self._schema, prefix=self._prefix)
            self._units[name] = Unit(inbox, self._transactions, threads=1)
            if subscriber.ack_policy is AckPolicy.ACK_FIRST:
                _log.warning(
                    "The subscriber %s acknowledges first, so a message is lost when its handler fails: set another "
                    "ack_policy, such as AckPolicy.NACK_ON_ERROR.",
                    inbox.consumer,
                )
        return self._units[name]


class _Handling(BaseMiddleware[Any, Any]):
    """One message."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, unit_of: Callable[[Any], Unit]) -> None:
        super().__init__(msg, context=context)
        self._unit_of = unit_of

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        if msg.source_type is SourceType.RESPONSE:  # to a question of our own, which nobody delivers again
            return await call_next(msg)
        unit, event = self._unit_of(self.context.get_local("handler_")), event_of(_received(msg))
        call = _Call(call_next, msg, context=self.context)
        if not await _carried_through(lambda: unit.handle(event, None, [call.handler])):
            await msg.ack()
            raise AckMessage
        if call.acknowledged is not None:
            raise call.acknowledged
        return call.result


class _Call:
    """The handler, called inside the transaction."""

    def __init__(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any], *, context: ContextRepo
    ) -> None:
        self.result: Any = None
        self.acknowledged: AckMessage | None = None
        """How the handler said that it is done with the message. What it wrote must stay."""
        self.handler = Handler(function=self._run, type=_ANYTHING, topic=_ANYTHING, takes=3, is_async=True)
        self._call_next = call_next
        self._msg = msg
        self._context = context

    async def _run(self, _: object, tx: Any, event: CloudEvent) -> None:
        self.result = self.acknowledged = None
        with self._context.scope("transaction", tx), self._context.scope("event", event):
            try:
                self.result = await self._call_next(self._msg)
            except AckMessage as done:
                self.acknowledged = done


async def _carried_through(handle: Callable[[], Awaitable[bool]]) -> bool:
    """A transaction that met another is repeated: no policy of a broker is for that."""
    for tries in range(1, _TRIES + 1):
        try:
            return await handle()
        except Exception as error:
            if tries == _TRIES or cause_of(error) is not Cause.CONFLICT:
                raise
        await asyncio.sleep(_CONFLICT_WAIT * random.random())  # noqa: S311
    raise AssertionError("unreachable")


# --- who a message is ----------------------------------------------------------------------------


def _received(msg: StreamMessage[Any]) -> Received:
    if isinstance(msg.raw_message, (list, tuple)):
        raise DecodeError(
            "A subscriber that takes batches cannot have an inbox, which knows one message at a time: set batch=False."
        )
    headers: dict[str, Any] = dict(msg.headers)
    if msg.content_type:
        headers.setdefault("content-type", msg.content_type)
    body = msg.body if isinstance(msg.body, bytes) else b""
    return Received(headers=headers, body=body, binding=_binding(headers), plain=_plain(msg))


def _binding(headers: Mapping[str, Any]) -> Binding:
    names = {name.lower() for name in headers}
    for binding in _BINDINGS:
        if names & {f"{prefix}specversion".lower() for prefix in (binding.prefix, *binding.also_read)}:
            return binding
    return HTTP


def _plain(msg: StreamMessage[Any]) -> Plain:
    """Its place in the broker where that has one, as our own receivers know it; or else the id that FastStream has."""
    source, message_id = _kafka(msg.raw_message) or _jetstream(msg.raw_message) or ("faststream:", msg.message_id)
    return Plain(message_id=identity(message_id), source=source, type="faststream", topic="faststream")


def _kafka(raw: Any) -> tuple[str, str] | None:
    """FastStream's own id has the offset and the time: two partitions may have the same."""
    found = [getattr(raw, name, None) for name in ("topic", "partition", "offset")]
    topic, partition, offset = (value() if callable(value) else value for value in found)
    return None if offset is None or partition is None else (f"kafka:{topic}", f"{topic}/{partition}/{offset}")


def _jetstream(raw: Any) -> tuple[str, str] | None:
    own = (getattr(raw, "headers", None) or {}).get("Nats-Msg-Id") if hasattr(raw, "subject") else None
    with suppress(Exception):  # of a message that no stream has, the client says so in several ways
        place = raw.metadata
        return f"nats:{place.stream}", own or f"{place.stream}/{place.sequence.stream}"
    return None
