"""From what the caller gave to messages ready to write: pure, and all of a call or none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from pillarbox.clock import Clock
from pillarbox.codec import JSON, encode, encode_dict, is_json
from pillarbox.context import current, trace_headers
from pillarbox.errors import PayloadTooLarge, PublishError, UnknownType, WrongKind
from pillarbox.events import Definition, Getter, Types
from pillarbox.limits import check_headers, is_type_name, text_of
from pillarbox.message import Kind, Message, new_message_id, partition_of
from pillarbox.options import Options, aware
from pillarbox.routes import Routes, check_override

__all__ = ["Composer"]


class _Shared(msgspec.Struct, frozen=True):
    """What all messages of one call have in common."""

    kind: Kind
    headers: Mapping[str, str]
    correlation_id: str | None
    causation_id: str | None
    event_time: datetime
    available_at: datetime | None


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What all payloads of one class have in common within a call, so that it is worked out once."""

    type: str
    topic: str
    destinations: tuple[str, ...]
    content_type: str
    encode: Callable[[Any, str], bytes]
    key: Getter | None
    subject: Getter | None
    event_time: Getter | None


class Composer(msgspec.Struct, frozen=True, kw_only=True):
    """Builds the messages of a call. The first that is not fit to be written raises, and there are none."""

    routes: Routes
    types: Types
    source: str
    clock: Clock
    max_payload: int

    def compose(self, payloads: Iterable[object], *, kind: Kind, options: Options) -> tuple[list[UUID], list[Message]]:
        """The message id of each payload, and one message per payload and destination, in order."""
        shared = self._shared(kind, options)
        plans: dict[type, _Plan] = {}
        ids: list[UUID] = []
        messages: list[Message] = []
        for payload in payloads:
            plan = plans.get(type(payload))
            if plan is None:
                plan = plans[type(payload)] = self._plan(type(payload), shared, options)
            message_id = new_message_id()
            ids.append(message_id)
            self._add(messages, message_id, payload, plan, shared)
        return ids, messages

    def _shared(self, kind: Kind, options: Options) -> _Shared:
        context = current()
        headers = check_headers(options.headers) if options.headers else {}
        return _Shared(
            kind,
            headers | trace_headers(context),
            options.correlation_id or context.correlation_id,
            options.causation_id or context.causation_id,
            self.clock.now() if options.event_time is None else aware(options.event_time, what="event_time"),
            None if options.deliver_at is None else aware(options.deliver_at, what="deliver_at"),
        )

    def _plan(self, cls: type, shared: _Shared, options: Options) -> _Plan:
        definition = self._definition(cls, shared.kind, options)
        topic = options.topic or definition.topic
        return _Plan(
            type=definition.name,
            topic=topic,
            destinations=self._destinations(definition.name, topic, shared, options),
            content_type=options.content_type or JSON,
            encode=_encoder(cls),
            key=definition.key if options.key is UNSET else _always(options.key),
            subject=definition.subject if options.subject is None else _always(options.subject),
            event_time=definition.event_time if options.event_time is None else None,
        )

    def _definition(self, cls: type, kind: Kind, options: Options) -> Definition:
        if issubclass(cls, (dict, bytes)):
            return self._ad_hoc(cls, kind, options)
        definition = self.types.of(cls)
        _check_kind(definition, kind)
        if options.type is not None or options.content_type is not None:
            raise PublishError(
                f"type= and content_type= are for a dict or bytes; {cls.__qualname__} is registered as "
                f"{definition.name} and written as JSON."
            )
        return definition

    def _ad_hoc(self, cls: type, kind: Kind, options: Options) -> Definition:
        """What is known about a dict or bytes: the options, and the topic of a type registered under that name."""
        name = _given_name(cls, options)
        registered = self.types.named(name)
        if registered is None:
            return Definition(name=name, kind=kind, cls=cls, topic=name)
        _check_kind(registered, kind)
        if registered.key is not None and options.key is UNSET:
            raise PublishError(
                f"{name} takes its key from {registered.cls.__qualname__}; give key= with a dict or bytes of that type."
            )
        return Definition(name=name, kind=kind, cls=cls, topic=registered.topic)

    def _destinations(self, name: str, topic: str, shared: _Shared, options: Options) -> tuple[str, ...]:
        if options.destinations is not None:
            return check_override(options.destinations, kind=shared.kind, type=name, topic=topic)
        return self.routes.find(topic=topic, type=name, kind=shared.kind, headers=shared.headers)

    def _add(self, messages: list[Message], message_id: UUID, payload: object, plan: _Plan, shared: _Shared) -> None:
        body = plan.encode(payload, plan.type)
        if len(body) > self.max_payload:
            raise _too_large(plan, size=len(body), limit=self.max_payload)
        text: str = msgspec.to_builtins(message_id)
        key = None if plan.key is None else text_of(plan.key(payload), what="key")
        subject = None if plan.subject is None else text_of(plan.subject(payload), what="subject")
        event_time = shared.event_time if plan.event_time is None else _event_time(plan.event_time(payload), shared)
        partition = partition_of(key or text, message_id)
        for destination in plan.destinations:
            messages.append(
                # By position, in the order of the fields: this is the hot path, and names cost more.
                Message(
                    0, message_id, destination, partition, shared.kind, plan.type, plan.topic, key, body,
                    plan.content_type, shared.headers, self.source, subject, shared.correlation_id or text,
                    shared.causation_id, event_time, None, shared.available_at,
                )
            )  # fmt: skip


def _encoder(cls: type) -> Callable[[Any, str], bytes]:
    if issubclass(cls, bytes):
        return lambda payload, _name: bytes(payload)
    return encode_dict if issubclass(cls, dict) else encode


def _too_large(plan: _Plan, *, size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The payload of {plan.type} is {size} bytes and the limit is {limit}: store it elsewhere and publish a "
        "reference, or raise max_payload."
    )


def _always(value: object) -> Getter:
    return lambda _payload: value


def _event_time(given: object, shared: _Shared) -> datetime:
    return shared.event_time if given is None else aware(given, what="event_time")


def _given_name(cls: type, options: Options) -> str:
    if options.type is None:
        raise UnknownType(f"A {cls.__name__} payload needs type=, the stable name of what it is.")
    if not is_type_name(options.type):
        raise PublishError(
            "The type= is not usable as a name: write a letter, then letters, digits, '_', '.', ':', '/' or '-'."
        )
    if issubclass(cls, bytes) and options.content_type is None:
        raise PublishError(f"The bytes of {options.type} need content_type=, which says how to read them.")
    if issubclass(cls, dict) and not is_json(options.content_type or JSON):
        raise PublishError(f"The dict of {options.type} is written as JSON, so its content_type= must be a JSON one.")
    return options.type


def _check_kind(definition: Definition, kind: Kind) -> None:
    if definition.kind is kind:
        return
    if definition.kind is Kind.COMMAND:
        raise WrongKind(f"{definition.name} is a command; give it to send(), not publish().")
    raise WrongKind(f"{definition.name} is an event; give it to publish(), not send().")
