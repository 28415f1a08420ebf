"""Publishing: messages go into the caller's own transaction, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from os import PathLike
from typing import Any, Final, Protocol, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

import msgspec
from msgspec import UNSET

from pillarbox import writers
from pillarbox.arguments import check_argument
from pillarbox.clock import Clock, SystemClock
from pillarbox.context import current, trace_headers
from pillarbox.contracts.writer import Insert
from pillarbox.errors import ConfigError, PayloadTooLarge, PublishError, UnknownType, WrongKind
from pillarbox.events import DEFAULT_TYPES, JSON, Definition, Getter, Types, encode, encode_dict, is_json
from pillarbox.message import (
    MAX_PAYLOAD,
    MAX_TEXT,
    Kind,
    Message,
    Names,
    check_headers,
    compute_partition,
    is_type_name,
    new_message_id,
    to_text,
)
from pillarbox.publish_options import PublishOptions, check_options, to_utc
from pillarbox.routes import Route, Routes, check_override
from pillarbox.writers.awaitable import MustAwait

__all__ = ["AsyncHandle", "Outbox", "SyncHandle"]

T = TypeVar("T")
_URI_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")


class SyncHandle(Protocol):
    """A connection or session whose methods are called: sqlite3, psycopg, PyMySQL, SQLAlchemy's `Session`."""

    def commit(self) -> None: ...


class _CommitsAsync(Protocol):
    """A connection or session whose methods are awaited: asyncmy, aiomysql, aiosqlite, psycopg, SQLAlchemy."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class _ClosesAsync(Protocol):
    """A connection whose methods are awaited and that has no `commit`: asyncpg."""

    def close(self) -> Coroutine[Any, Any, None]: ...


AsyncHandle = _CommitsAsync | _ClosesAsync


class Outbox:
    """Writes messages into the caller's transaction. Holds no connection; make one per program and share it.

    `routes` decides where messages go: the name of the one destination, a list of `Route`, or `Routes`. `source`
    is the publisher, a URI reference such as "/shop". `spans` traces each call:
    `pillarbox.operations.publishing_span`.
    """

    def __init__(
        self,
        *,
        routes: Routes | str | Iterable[Route],
        source: str,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        types: Types | None = None,
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
        serialize_keys: bool = False,
        spans: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        check_argument(source, "source", str)
        check_argument(max_payload, "max_payload", int)
        check_argument(serialize_keys, "serialize_keys", bool)
        if max_payload < 1:
            raise ConfigError(f"max_payload={max_payload} is not usable; give a number of bytes above 0.")
        if not _URI_REFERENCE.fullmatch(source) or len(source) > MAX_TEXT:
            raise ConfigError(
                f"The source {source!r} is not a URI reference of at most {MAX_TEXT} characters; write for example "
                '"/shop" or "https://example.com/shop".'
            )
        self.routes = Routes.parse(routes)
        self.source = source
        self.names = Names(schema, prefix)
        self.types = DEFAULT_TYPES if types is None else types
        self._serialize_keys = serialize_keys
        self._spans = spans
        self._builder = _MessageBuilder(
            routes=self.routes,
            types=self.types,
            source=self.source,
            clock=SystemClock() if clock is None else clock,
            max_payload=max_payload,
        )

    @classmethod
    def from_config(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        types: Types | None = None,
        clock: Clock | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Make the outbox that `[outbox]` in the configuration describes, in the file that the relay reads too.

        `path` is found as `Config.load` finds it. Raises `UnknownDestination` where a route leads to a name that is
        not configured, because no relay would deliver it.
        """
        from pillarbox.config import Config, build_routes, read_outbox_section, read_store_section

        config = Config.load(path, environ=environ)
        given, names = read_outbox_section(config).settings, read_store_section(config).settings
        if given.source is None:
            raise ConfigError(
                f'No source is configured: write source = "/shop" under [outbox] in {config.file_name}, or set '
                "PILLARBOX_OUTBOX_SOURCE."
            )
        return cls(
            routes=build_routes(config, given),
            source=given.source,
            schema=names.schema,
            prefix=names.prefix,
            types=types,
            clock=clock,
            max_payload=given.max_payload,
            serialize_keys=given.serialize_keys,
        )

    @overload
    def publish(  # type: ignore[overload-overlap]
        self, tx: SyncHandle, event: list[Any] | tuple[Any, ...], **options: Unpack[PublishOptions]
    ) -> list[UUID]: ...
    @overload
    def publish(  # type: ignore[overload-overlap]
        self, tx: AsyncHandle, event: list[Any] | tuple[Any, ...], **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, list[UUID]]: ...
    @overload
    def publish(self, tx: SyncHandle, event: object, **options: Unpack[PublishOptions]) -> UUID: ...
    @overload
    def publish(
        self, tx: AsyncHandle, event: object, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, UUID]: ...

    def publish(
        self, tx: SyncHandle | AsyncHandle, event: object, **options: Unpack[PublishOptions]
    ) -> UUID | list[UUID] | Coroutine[Any, Any, UUID] | Coroutine[Any, Any, list[UUID]]:
        """Write an event, or a list of them, into the transaction of `tx`, and return its message id, or theirs.

        On an async handle the result must be awaited. The options hold for every event of a list: see
        `PublishOptions`. When anything is wrong with any of them, a `PublishError` is raised and nothing is written.
        """
        return self._write(tx, event, kind=Kind.EVENT, options=options)

    @overload
    def send(  # type: ignore[overload-overlap]
        self, tx: SyncHandle, command: list[Any] | tuple[Any, ...], **options: Unpack[PublishOptions]
    ) -> list[UUID]: ...
    @overload
    def send(  # type: ignore[overload-overlap]
        self, tx: AsyncHandle, command: list[Any] | tuple[Any, ...], **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, list[UUID]]: ...
    @overload
    def send(self, tx: SyncHandle, command: object, **options: Unpack[PublishOptions]) -> UUID: ...
    @overload
    def send(
        self, tx: AsyncHandle, command: object, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, UUID]: ...

    def send(
        self, tx: SyncHandle | AsyncHandle, command: object, **options: Unpack[PublishOptions]
    ) -> UUID | list[UUID] | Coroutine[Any, Any, UUID] | Coroutine[Any, Any, list[UUID]]:
        """Write a command, or a list of them, as `publish` does for events. Each must have exactly one destination."""
        return self._write(tx, command, kind=Kind.COMMAND, options=options)

    def attach(self, sessions: object) -> None:
        """Publish what the aggregates in SQLAlchemy sessions raise, when the sessions flush or commit.

        `sessions` is a sessionmaker, an async_sessionmaker, a scoped session, a class of sessions, or one session.
        Attach once, before sessions are used. See `pillarbox.Aggregate`.
        """
        from pillarbox.writers.domain_events import attach

        attach(sessions, self._publish_raised)

    def _publish_raised(self, session: object, events: Sequence[object], options: Mapping[str, Any]) -> None:
        self._write(session, list(events), kind=Kind.EVENT, options=cast("PublishOptions", options))

    def _write(
        self, tx: object, given: object, *, kind: Kind, options: PublishOptions
    ) -> UUID | list[UUID] | Coroutine[Any, Any, UUID] | Coroutine[Any, Any, list[UUID]]:
        check_options(options)
        is_async = writers.is_async(tx)
        is_many = isinstance(given, (list, tuple))
        payloads: Any = given if is_many else (given,)
        if self._spans is None:
            ids, messages = self._builder.build(payloads, kind=kind, options=options)
        else:
            with self._spans(options.get("type") or type(payloads[0]).__name__ if payloads else "nothing"):
                ids, messages = self._builder.build(payloads, kind=kind, options=options)
        batch = Insert(
            names=self.names,
            messages=messages,
            delay=options.get("delay") or None,
            serialize_keys=self._serialize_keys,
        )
        if is_async:
            return _insert_async(tx, batch, ids) if is_many else _insert_async(tx, batch, ids[0])
        if messages:
            writers.insert(tx, batch)
        return ids if is_many else ids[0]


def _insert_async(tx: object, batch: Insert, result: T) -> Coroutine[Any, Any, T]:
    async def insert() -> T:
        if batch.messages:
            await cast("Awaitable[None]", writers.insert(tx, batch))
        return result

    names = ", ".join(sorted({message.type for message in batch.messages})) or "nothing"
    return MustAwait(insert, f"Publishing {names}")


# --- building messages ---------------------------------------------------------------------------


class _CallValues(msgspec.Struct, frozen=True):
    """Values that all messages of one call share."""

    kind: Kind
    headers: Mapping[str, str]
    correlation_id: str | None
    causation_id: str | None
    event_time: datetime
    available_at: datetime | None


class _ClassPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Values that all payloads of one class share within a call, so that they are worked out once."""

    type: str
    topic: str
    destinations: tuple[str, ...]
    content_type: str
    encode: Callable[[Any, str], bytes]
    key: Getter | None
    subject: Getter | None
    event_time: Getter | None


class _MessageBuilder(msgspec.Struct, frozen=True, kw_only=True):
    """Builds the messages of a call. The first that cannot be written raises, and none is built."""

    routes: Routes
    types: Types
    source: str
    clock: Clock
    max_payload: int

    def build(
        self, payloads: Iterable[object], *, kind: Kind, options: PublishOptions
    ) -> tuple[list[UUID], list[Message]]:
        """Return the message id of each payload, and one message per payload and destination, in order."""
        shared = self._share(kind, options)
        plans: dict[type, _ClassPlan] = {}
        ids: list[UUID] = []
        messages: list[Message] = []
        for payload in payloads:
            if isinstance(payload, type):
                raise PublishError(
                    f"{payload.__qualname__} is a class, and what is published is an instance of it: write "
                    f"{payload.__qualname__}(…)."
                )
            plan = plans.get(type(payload))
            if plan is None:
                plan = plans[type(payload)] = self._plan(type(payload), shared, options)
            message_id = new_message_id()
            ids.append(message_id)
            self._add(messages, message_id, payload, plan, shared)
        return ids, messages

    def _share(self, kind: Kind, options: PublishOptions) -> _CallValues:
        context = current()
        headers, event_time, deliver_at = options.get("headers"), options.get("event_time"), options.get("deliver_at")
        return _CallValues(
            kind,
            (check_headers(headers) if headers else {}) | trace_headers(context),
            options.get("correlation_id") or context.correlation_id,
            options.get("causation_id") or context.causation_id,
            self.clock.now() if event_time is None else to_utc(event_time, what="event_time"),
            None if deliver_at is None else to_utc(deliver_at, what="deliver_at"),
        )

    def _plan(self, cls: type, shared: _CallValues, options: PublishOptions) -> _ClassPlan:
        definition = self._define(cls, shared.kind, options)
        name, topic = definition.name, options.get("topic") or definition.topic
        destinations = options.get("destinations")
        if destinations is None:
            found = self.routes.find(topic=topic, type=name, kind=shared.kind, headers=shared.headers)
        else:
            found = check_override(destinations, kind=shared.kind, type=name, topic=topic)
        key, subject = options.get("key", UNSET), options.get("subject")
        return _ClassPlan(
            type=name,
            topic=topic,
            destinations=found,
            content_type=options.get("content_type") or JSON,
            encode=_find_encoder(cls),
            key=definition.key if key is UNSET else lambda _: key,
            subject=definition.subject if subject is None else lambda _: subject,
            event_time=definition.event_time if options.get("event_time") is None else None,
        )

    def _define(self, cls: type, kind: Kind, options: PublishOptions) -> Definition:
        if issubclass(cls, (dict, bytes)):
            return self._define_ad_hoc(cls, kind, options)
        if cls.__module__ == "builtins":
            raise UnknownType(
                f"A {cls.__qualname__} cannot be published by itself: give an instance of a class that is decorated "
                'with @event("a.name") or @command("a.name"), or a dict with type=, or bytes with type= and '
                "content_type=."
            )
        definition = self.types.get_by_class(cls)
        _check_kind(definition, kind)
        if options.get("type") is not None or options.get("content_type") is not None:
            raise PublishError(
                f"type= and content_type= are for a dict or bytes; {cls.__qualname__} is registered as "
                f"{definition.name} and written as JSON."
            )
        return definition

    def _define_ad_hoc(self, cls: type, kind: Kind, options: PublishOptions) -> Definition:
        """Define the type of a dict or bytes by the options, with the topic of a type registered under that name."""
        name = _check_ad_hoc(cls, options)
        registered = self.types.find_by_name(name)
        if registered is None:
            return Definition(name=name, kind=kind, cls=cls, topic=name)
        _check_kind(registered, kind)
        if registered.key is not None and options.get("key", UNSET) is UNSET:
            raise PublishError(
                f"{name} takes its key from {registered.cls.__qualname__}; give key= with a dict or bytes of that type."
            )
        return Definition(name=name, kind=kind, cls=cls, topic=registered.topic)

    def _add(
        self, messages: list[Message], message_id: UUID, payload: object, plan: _ClassPlan, shared: _CallValues
    ) -> None:
        body = plan.encode(payload, plan.type)
        if len(body) > self.max_payload:
            raise PayloadTooLarge(
                f"The payload of {plan.type} is {len(body)} bytes and the limit is {self.max_payload}: store it "
                "elsewhere and publish a reference, or raise max_payload."
            )
        text: str = msgspec.to_builtins(message_id)
        key = None if plan.key is None else to_text(plan.key(payload), what="key")
        subject = None if plan.subject is None else to_text(plan.subject(payload), what="subject")
        own_time = None if plan.event_time is None else plan.event_time(payload)
        event_time = shared.event_time if own_time is None else to_utc(own_time, what="event_time")
        partition = compute_partition(key or text, message_id)
        for destination in plan.destinations:
            messages.append(
                # By position, in the order of the fields: this is the hot path, and names cost more.
                Message(
                    0, message_id, destination, partition, shared.kind, plan.type, plan.topic, key, body,
                    plan.content_type, shared.headers, self.source, subject, shared.correlation_id or text,
                    shared.causation_id, event_time, None, shared.available_at,
                )
            )  # fmt: skip


def _find_encoder(cls: type) -> Callable[[Any, str], bytes]:
    if issubclass(cls, bytes):
        return lambda payload, _name: bytes(payload)
    return encode_dict if issubclass(cls, dict) else encode


def _check_ad_hoc(cls: type, options: PublishOptions) -> str:
    """Check the options that a dict or bytes needs, and return the name of its type."""
    name, content_type = options.get("type"), options.get("content_type")
    if name is None:
        raise UnknownType(f"A {cls.__name__} payload needs type=, the stable name of what it is.")
    if not is_type_name(name):
        raise PublishError(
            "The type= is not usable as a name: write a letter, then letters, digits, '_', '.', ':', '/' or '-'."
        )
    if issubclass(cls, bytes) and content_type is None:
        raise PublishError(f"The bytes of {name} need content_type=, which says how to read them.")
    if issubclass(cls, dict) and not is_json(content_type or JSON):
        raise PublishError(f"The dict of {name} is written as JSON, so its content_type= must be a JSON one.")
    return name


def _check_kind(definition: Definition, kind: Kind) -> None:
    if definition.kind is kind:
        return
    if definition.kind is Kind.COMMAND:
        raise WrongKind(f"{definition.name} is a command; give it to send(), not publish().")
    raise WrongKind(f"{definition.name} is an event; give it to publish(), not send().")
