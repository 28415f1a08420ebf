"""`@event` and `@command`: a class gets a stable name, and says where its key comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from pillarbox.errors import ConfigError, DuplicateType, PublishError, UnknownType
from pillarbox.limits import MAX_NAME, check_text, is_type_name
from pillarbox.message import Kind
from pillarbox.shapes import field_names

__all__ = ["DEFAULT_TYPES", "Definition", "Types", "command", "event"]

C = TypeVar("C", bound=type)
Getter = Callable[[Any], object]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered about one type of message."""

    name: str
    kind: Kind
    cls: type
    topic: str
    key: Getter | None = None
    subject: Getter | None = None
    event_time: Getter | None = None


class Types:
    """A registry of message types. Most programs need only the default one, behind `event` and `command`."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}
        self._by_class: dict[type, Definition] = {}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._by_name.values())

    def event(
        self,
        name: str,
        *,
        topic: str | None = None,
        key: str | Getter | None = None,
        subject: str | Getter | None = None,
        event_time: str | Getter | None = None,
    ) -> Callable[[C], C]:
        """Register a class as the event `name`, which goes to everyone interested.

        The name is what stands in rows and on the wire: keep it when the class is renamed or moved. `topic`
        is the name unless given. `key`, `subject` and `event_time` are each the name of a field, or a function
        of the instance; messages with one key are delivered in order, and a key of None asks for no order.
        """
        return self._decorator(name, Kind.EVENT, topic=topic, key=key, subject=subject, event_time=event_time)

    def command(
        self,
        name: str,
        *,
        topic: str | None = None,
        key: str | Getter | None = None,
        subject: str | Getter | None = None,
        event_time: str | Getter | None = None,
    ) -> Callable[[C], C]:
        """Register a class as the command `name`, which goes to exactly one destination. Otherwise as `event`."""
        return self._decorator(name, Kind.COMMAND, topic=topic, key=key, subject=subject, event_time=event_time)

    def of(self, cls: type) -> Definition:
        """What is registered for exactly this class; `UnknownType` when nothing is."""
        try:
            return self._by_class[cls]
        except KeyError:
            raise UnknownType(
                f'The class {cls.__qualname__} is not registered: decorate it with @event("a.name") or '
                '@command("a.name"), or give a dict with type=, or bytes with type= and content_type=.'
            ) from None

    def named(self, name: str) -> Definition | None:
        """What is registered under this name."""
        return self._by_name.get(name)

    def _decorator(
        self,
        name: str,
        kind: Kind,
        *,
        topic: str | None,
        key: str | Getter | None,
        subject: str | Getter | None,
        event_time: str | Getter | None,
    ) -> Callable[[C], C]:
        _check_names(name, topic)

        def register(cls: C) -> C:
            fields = field_names(cls)
            self._add(
                Definition(
                    name=name,
                    kind=kind,
                    cls=cls,
                    topic=topic or name,
                    key=_getter(cls, fields, key, option="key"),
                    subject=_getter(cls, fields, subject, option="subject"),
                    event_time=_getter(cls, fields, event_time, option="event_time"),
                )
            )
            return cls

        return register

    def _add(self, definition: Definition) -> None:
        cls, known, other = definition.cls, self._by_name.get(definition.name), self._by_class.get(definition.cls)
        if known is not None and _qualified(known.cls) != _qualified(cls):
            raise DuplicateType(
                f"The type name {definition.name!r} belongs to {_qualified(known.cls)} and cannot also name "
                f"{_qualified(cls)}; choose another name for one of them."
            )
        if other is not None and other.name != definition.name:
            raise DuplicateType(f"{_qualified(cls)} is already registered as {other.name!r}; a class has one name.")
        self._by_name[definition.name] = definition
        self._by_class[cls] = definition


def _check_names(name: str, topic: str | None) -> None:
    if not is_type_name(name):
        raise ConfigError(
            f"The type name {name!r} is not usable: write a letter, then at most {MAX_NAME - 1} letters, digits, "
            "'_', '.', ':', '/' or '-'."
        )
    if topic is not None:
        try:
            check_text(topic, what=f"topic of {name}", limit=MAX_NAME)
        except PublishError as error:
            raise ConfigError(str(error)) from None


def _getter(cls: type, fields: tuple[str, ...], source: str | Getter | None, *, option: str) -> Getter | None:
    if source is None or callable(source):
        return source
    if source not in fields:
        raise ConfigError(
            f"{cls.__qualname__} has no field {source!r} for {option}=; its fields are "
            f"{', '.join(fields) or 'none'}. Name one of them, or give a function."
        )
    return attrgetter(source)


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


DEFAULT_TYPES: Final = Types()
"""What `event` and `command` fill, and every outbox uses that is given no other."""

event = DEFAULT_TYPES.event
command = DEFAULT_TYPES.command
