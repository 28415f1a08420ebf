"""An inbox for FastStream's subscribers. Needs the extra `faststream`."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pillarbox.cloudevents import AMQP, HTTP, KAFKA, NATS, Binding, CloudEvent
from pillarbox.consumer.transaction_retry import Losses, TransactionRetry
from pillarbox.consumer.unit_of_work import UnitOfWork, build_transactions
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_cloudevent, to_usable_id
from pillarbox.errors import ConfigError, DecodeError, MissingExtra
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from pillarbox.redaction import redact_error, redact_line

try:
    from faststream import BaseMiddleware
    from faststream.exceptions import AckMessage, RejectMessage
    from faststream.message import SourceType
    from faststream.middlewares import AckPolicy
except ModuleNotFoundError as error:
    raise MissingExtra("faststream", extra="faststream", needed_for="The inbox of a FastStream subscriber") from error

if TYPE_CHECKING:
    from faststream import ContextRepo, StreamMessage

__all__ = ["InboxMiddleware"]

_log: Final = logging.getLogger(__name__)
_ANYTHING: Final = re.compile("")
_BINDINGS: Final = (AMQP, KAFKA, NATS)


class InboxMiddleware:
    """Middleware with which the subscribers of a broker or router handle every message once in effect.

    One transaction accepts the message, runs the handler, and holds all that it writes and publishes with the outbox;
    then FastStream acknowledges. A duplicate is acknowledged without calling the handler. When the handler raises,
    the transaction is rolled back, and FastStream follows its acknowledgement policy.

    While the database is away a message waits, unacknowledged, and no policy is applied. What is marked as a CloudEvent
    and cannot be read is rejected once, and logged: a broker with a dead-letter queue has it there.

        broker = RabbitBroker(middlewares=[InboxMiddleware("billing", database=async_sessionmaker(engine))])

        @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
        async def bill(order: Order, session: Annotated[AsyncSession, Context("transaction")]) -> None: ...

    Each subscriber is a consumer of its own in the inbox: `billing.Bill`.
    """

    def __init__(self, name: str, *, database: object, schema: str | None = None, prefix: str = "pillarbox_") -> None:
        self._name = name
        self._schema = schema
        self._prefix = prefix
        self._transactions = build_transactions(database)
        self._units: dict[str, UnitOfWork] = {}
        if self._transactions.asynchronous is None:
            raise ConfigError(
                "The inbox of FastStream's subscribers needs transactions that are awaited: give an "
                "async_sessionmaker, an AsyncEngine, a pool of asyncpg, asyncmy or aiomysql, or psycopg's "
                "AsyncConnectionPool."
            )
        Inbox(name, schema=schema, prefix=prefix)  # Checks the names now, not with the first message.

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> BaseMiddleware[Any, Any]:
        """Return the middleware of one message, as FastStream expects."""
        return _Handling(msg, context=context, find_unit=self._find_unit)

    def _find_unit(self, subscriber: Any) -> UnitOfWork:
        name: str = subscriber.specification.call_name
        if name not in self._units:
            inbox = Inbox(f"{self._name}.{name}", schema=self._schema, prefix=self._prefix)
            self._units[name] = UnitOfWork(inbox, self._transactions, threads=1)
            if subscriber.ack_policy is AckPolicy.ACK_FIRST:
                _log.warning(
                    "The subscriber %s acknowledges first, so a message is lost when its handler fails: set another "
                    "ack_policy, such as AckPolicy.NACK_ON_ERROR.",
                    inbox.consumer,
                )
        return self._units[name]


class _Handling(BaseMiddleware[Any, Any]):
    """Middleware of one message."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, find_unit: Callable[[Any], UnitOfWork]) -> None:
        super().__init__(msg, context=context)
        self._find_unit = find_unit

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        if msg.source_type is SourceType.RESPONSE:  # The answer to a request of ours is not redelivered.
            return await call_next(msg)
        unit = self._find_unit(self.context.get_local("handler_"))
        incoming = _to_incoming(msg)
        try:
            event = to_cloudevent(incoming)
        except Exception as error:  # whatever reading it does, it does again at every delivery
            await _reject(msg, unit, error)
            raise RejectMessage from error
        call = _Call(call_next, msg, context=self.context)
        if not await _retry(unit).run(lambda: unit.handle(event, None, [call.handler]), losses=Losses()):
            await msg.ack()
            raise AckMessage
        if call.acknowledged is not None:
            raise call.acknowledged
        return call.result


class _Call:
    """Call of the handler inside the transaction."""

    def __init__(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any], *, context: ContextRepo
    ) -> None:
        self.result: Any = None
        self.acknowledged: AckMessage | None = None
        """Raised by a handler that acknowledges by itself. The transaction must commit all the same."""
        self.handler = Handler(function=self._run, type=_ANYTHING, topic=_ANYTHING, argument_count=3, is_async=True)
        self._call_next = call_next
        self._msg = msg
        self._context = context

    async def _run(self, _: object, tx: Any, event: CloudEvent) -> None:
        self.result = self.acknowledged = None
        with self._context.scope("transaction", tx), self._context.scope("event", event):
            try:
                self.result = await self._call_next(self._msg)
            except AckMessage as acknowledged:
                self.acknowledged = acknowledged


def _retry(unit: UnitOfWork) -> TransactionRetry:
    """Build what repeats a transaction through conflicts and outages: no acknowledgement policy is meant for those."""

    def on_outage(error: Exception) -> None:
        reason = redact_error(error)
        _log.warning("The database of %s is away, trying again: %s", unit.inbox.consumer, reason)

    return TransactionRetry(probe=unit.probe, dice=random.Random(), on_outage=on_outage)  # noqa: S311


async def _reject(msg: StreamMessage[Any], unit: UnitOfWork, error: Exception) -> None:
    """Reject a message for good: a broker that put it back would deliver it again at once."""
    _log.error(
        "The message %s for %s is rejected, because it cannot be read: %s",
        redact_line(msg.message_id),
        unit.inbox.consumer,
        redact_error(error),
    )
    await msg.reject()


# --- identity of a message ---


def _to_incoming(msg: StreamMessage[Any]) -> IncomingMessage:
    if isinstance(msg.raw_message, (list, tuple)):
        raise DecodeError(
            "A subscriber that takes batches cannot have an inbox, which knows one message at a time: set batch=False."
        )
    headers: dict[str, Any] = dict(msg.headers)
    if msg.content_type:
        headers.setdefault("content-type", msg.content_type)
    body = msg.body if isinstance(msg.body, bytes) else b""
    return IncomingMessage(headers=headers, body=body, binding=_find_binding(headers), fallback=_find_identity(msg))


def _find_binding(headers: Mapping[str, Any]) -> Binding:
    names = {name.lower() for name in headers}
    for binding in _BINDINGS:
        if names & {f"{prefix}specversion".lower() for prefix in (binding.prefix, *binding.also_read)}:
            return binding
    return HTTP


def _find_identity(msg: StreamMessage[Any]) -> FallbackIdentity:
    """Identify a message that is no CloudEvent by its position in the broker, or else by FastStream's id.

    Positions are written as our own receivers write them.
    """
    source, message_id = (
        _find_kafka_position(msg.raw_message)
        or _find_jetstream_position(msg.raw_message)
        or ("faststream:", msg.message_id)
    )
    return FallbackIdentity(message_id=to_usable_id(message_id), source=source, type="faststream", topic="faststream")


def _find_kafka_position(raw: Any) -> tuple[str, str] | None:
    # FastStream's id is made of offset and time, which two partitions may have in common.
    values = [getattr(raw, name, None) for name in ("topic", "partition", "offset")]
    topic, partition, offset = (value() if callable(value) else value for value in values)
    return None if offset is None or partition is None else (f"kafka:{topic}", f"{topic}/{partition}/{offset}")


def _find_jetstream_position(raw: Any) -> tuple[str, str] | None:
    message_id = (getattr(raw, "headers", None) or {}).get("Nats-Msg-Id") if hasattr(raw, "subject") else None
    with suppress(Exception):  # The client has several errors for a message outside of any stream.
        position = raw.metadata
        return f"nats:{position.stream}", message_id or f"{position.stream}/{position.sequence.stream}"
    return None
