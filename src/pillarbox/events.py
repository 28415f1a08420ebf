"""Message types: `@event` and `@command` register a class under a stable name, with its key; the JSON codec."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

import msgspec

from pillarbox.errors import ConfigError, DecodeError, DuplicateType, PayloadNotSerializable, PublishError, UnknownType
from pillarbox.message import MAX_NAME, Kind, check_text, is_type_name

__all__ = [
    "DEFAULT_TYPES",
    "JSON",
    "Definition",
    "EncodedPayload",
    "Getter",
    "Types",
    "command",
    "decode",
    "encode",
    "encode_dict",
    "event",
    "is_json",
]


C = TypeVar("C", bound=type)
Getter = Callable[[Any], object]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Registration of one message type."""

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

        The name is written into rows and sent over the wire: keep it when the class is renamed or moved. `topic`
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

    def get_by_class(self, cls: type) -> Definition:
        """Return the registration of exactly this class; raise `UnknownType` when there is none."""
        try:
            return self._by_class[cls]
        except KeyError:
            raise UnknownType(
                f'The class {cls.__qualname__} is not registered: decorate it with @event("a.name") or '
                '@command("a.name"), or give a dict with type=, or bytes with type= and content_type=.'
            ) from None

    def find_by_name(self, name: str) -> Definition | None:
        """Return the registration under this name, if there is one."""
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
            fields = _list_fields(cls)
            self._add(
                Definition(
                    name=name,
                    kind=kind,
                    cls=cls,
                    topic=topic or name,
                    key=_build_getter(cls, fields, key, option="key"),
                    subject=_build_getter(cls, fields, subject, option="subject"),
                    event_time=_build_getter(cls, fields, event_time, option="event_time"),
                )
            )
            return cls

        return register

    def _add(self, definition: Definition) -> None:
        cls, known, other = definition.cls, self._by_name.get(definition.name), self._by_class.get(definition.cls)
        if known is not None and _full_name(known.cls) != _full_name(cls):
            raise DuplicateType(
                f"The type name {definition.name!r} belongs to {_full_name(known.cls)} and cannot also name "
                f"{_full_name(cls)}; choose another name for one of them."
            )
        if other is not None and other.name != definition.name:
            raise DuplicateType(f"{_full_name(cls)} is already registered as {other.name!r}; a class has one name.")
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


def _build_getter(cls: type, fields: tuple[str, ...], source: str | Getter | None, *, option: str) -> Getter | None:
    if source is None or callable(source):
        return source
    if source not in fields:
        raise ConfigError(
            f"{cls.__qualname__} has no field {source!r} for {option}=; its fields are "
            f"{', '.join(fields) or 'none'}. Name one of them, or give a function."
        )
    return attrgetter(source)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


DEFAULT_TYPES: Final = Types()
"""The registry behind `event` and `command`, used by every outbox that is given no other."""

event = DEFAULT_TYPES.event
command = DEFAULT_TYPES.command


JSON: Final = "application/json"

_JSON_TYPE: Final = re.compile(
    r"(?:application|text)/(?:[\w.-]+\+)?json(?:\s*;.*)?|[\w.-]+/[\w.-]+\+json(?:\s*;.*)?", re.I
)
_MAX_DEPTH: Final = 100


class EncodedPayload(Protocol):
    """An object with an encoded payload: a `Message`, or a received `CloudEvent`."""

    @property
    def type(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...


@lru_cache(maxsize=256)
def is_json(content_type: str) -> bool:
    """Return True for a content type of JSON."""
    return _JSON_TYPE.fullmatch(content_type) is not None


# --- encoding ----------------------------------------------------------------------------------


def encode(value: object, name: str) -> bytes:
    """Encode a registered instance, or a dict, as JSON.

    Raises `PayloadNotSerializable`, which names type and field, never the value.

    A pydantic model is written by itself, so that its aliases and serializers hold, at any depth.
    """
    try:
        payload = _encoder.encode(value)
    except Exception:
        # The cause is left out: serializers of the user's own may quote the value.
        raise _build_error(value, name) from None
    if b"null" in payload and _has_nan(value):
        raise _build_error(value, name)
    return payload


def encode_dict(value: dict[str, Any], name: str) -> bytes:
    """Encode a dict as JSON. Its keys must be str at every depth: other keys would not be decoded to what they were."""
    _check_keys(value, name=name, path="")
    return encode(value, name)


def _encode_model(value: Any) -> msgspec.Raw:
    if not _is_pydantic(type(value)):
        raise TypeError
    text = value.model_dump_json(by_alias=_uses_aliases(value))
    if "NaN" in text or "Infinity" in text:
        msgspec.json.decode(text, type=msgspec.Raw)  # a model may be set to write them bare, which is not JSON
    return msgspec.Raw(text.encode())


def _dump_model(value: Any) -> Any:
    return value.model_dump(by_alias=_uses_aliases(value))


def _uses_aliases(model: Any) -> bool:
    # Validation reads aliases by default, so aliases must be written; the model's own setting wins.
    return bool(model.model_config.get("serialize_by_alias", True))


_msgpack_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_dump_model)
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_model, decimal_format="string", uuid_format="canonical")


def _has_nan(value: object) -> bool:
    """Return True for a value with NaN or infinity in it, which JSON cannot express: they are encoded as null.

    MessagePack keeps them, as bytes that rarely stand for anything else: looking for those first is five times
    faster than walking through the value.
    """
    try:
        if not _NOT_FINITE.search(_msgpack_encoder.encode(value)):
            return False
    except Exception:  # noqa: S110 - an int too big for MessagePack, for one
        pass
    return _contains_nan(msgspec.to_builtins(value, enc_hook=_dump_model))


def _contains_nan(data: object) -> bool:
    if isinstance(data, float):
        return not math.isfinite(data)
    if isinstance(data, dict):
        return any(map(_contains_nan, data.values()))
    return isinstance(data, (list, tuple, set, frozenset)) and any(map(_contains_nan, data))


def _check_keys(value: object, *, name: str, path: str) -> None:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise PayloadNotSerializable(
                    f"The payload of {name} has a key of type {type(key).__name__} at {path or 'its top'}; "
                    "keys of a dict payload must be str."
                )
    if isinstance(value, (dict, list, tuple)) and path.count(".") + path.count("[") < _MAX_DEPTH:
        for step, child in _iterate_children(value):
            _check_keys(child, name=name, path=path + step)


def _build_error(value: object, name: str) -> PayloadNotSerializable:
    path, culprit = _find_culprit(value)
    where = f"Field {path[1:] if path.startswith('.') else path} of {name}" if path else f"The payload of {name}"
    if isinstance(culprit, float):
        return PayloadNotSerializable(f"{where} is not a finite number, and JSON has no other; use None or a str.")
    if isinstance(culprit, str):
        return PayloadNotSerializable(f"{where} is a str with half a surrogate pair, which UTF-8 cannot hold.")
    advice = "convert it to plain data, or give bytes with content_type="
    if _is_pydantic(type(culprit)):
        advice = "give that model a serializer for it (for bytes: ser_json_bytes and val_json_bytes = 'base64')"
    return PayloadNotSerializable(
        f"{where} is, or holds, a {type(culprit).__name__} that cannot be written as JSON; {advice}."
    )


def _find_culprit(value: object) -> tuple[str, object]:
    """Find the innermost part that cannot be encoded, and the path to it."""
    path = ""
    for _ in range(_MAX_DEPTH):
        step = next(((way, child) for way, child in _iterate_children(value) if not _can_encode(child)), None)
        if step is None:
            break
        path, value = path + step[0], step[1]
    return path, value


def _can_encode(value: object) -> bool:
    try:
        return b"null" not in _encoder.encode(value) or not _has_nan(value)
    except Exception:
        return False


# --- decoding ----------------------------------------------------------------------------------


def decode(message: EncodedPayload, *, types: Types = DEFAULT_TYPES) -> Any:
    """Decode the payload to an instance of the class registered for its type.

    When the type is not registered, JSON is decoded to plain data and anything else stays bytes. Fields that the
    class does not have are ignored. Raises `DecodeError` with what is malformed or of the wrong type.
    """
    definition = types.find_by_name(message.type)
    if definition is None:
        return _decode_plain(message) if is_json(message.content_type) else message.payload
    if not is_json(message.content_type):
        raise DecodeError(
            f"A message of type {message.type} has content type {message.content_type!r}, which "
            f"{definition.cls.__qualname__} cannot be read from; read its payload as bytes."
        )
    try:
        return _build_decoder(definition.cls)(message.payload)
    except Exception as error:
        raise DecodeError(
            f"A message of type {message.type} is not a {definition.cls.__qualname__}: {_describe_error(error)}"
        ) from None


def _decode_plain(message: EncodedPayload) -> Any:
    try:
        return msgspec.json.decode(message.payload)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"A message of type {message.type} is not JSON: {_describe_error(error)}") from None


@lru_cache(maxsize=1024)
def _build_decoder(cls: Any) -> Callable[[bytes], Any]:
    if _is_pydantic(cls):
        return cls.model_validate_json  # type: ignore[no-any-return]
    return msgspec.json.Decoder(cls, dec_hook=_decode_nested_model).decode


def _decode_nested_model(cls: Any, data: Any) -> Any:
    """Decode what msgspec does not know: a pydantic model inside another class."""
    if not (isinstance(cls, type) and _is_pydantic(cls)):
        raise NotImplementedError(f"{cls!r} cannot be read from JSON")
    try:
        # By way of JSON: what a model takes from JSON and from Python objects differs.
        return cls.model_validate_json(msgspec.json.encode(data))  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(_describe_error(error)) from None


def _describe_error(error: Exception) -> str:
    """Describe an error on one line, without the input that pydantic would quote."""
    details = getattr(error, "errors", None)
    if not callable(details):
        text = str(error) or type(error).__name__
    else:
        found = details(include_input=False, include_url=False, include_context=False)
        text = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found)
    return text if text.endswith(".") else f"{text}."


# --- fields of classes and values ----------------------------------------------------------------


def _is_pydantic(cls: type) -> bool:
    """Return True for a pydantic (v2) model class."""
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_validate_json")


def _list_fields(cls: Any) -> tuple[str, ...]:
    """List the fields of a dataclass, pydantic model, attrs class or msgspec Struct; raise `ConfigError` for others."""
    if not callable(getattr(cls, "mro", None)):
        raise ConfigError(f"A message type must be a class, and {cls!r} is not.")
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if _is_pydantic(cls):
        return tuple(cls.model_fields)
    if "__attrs_attrs__" in cls.__dict__:
        return _list_attrs_fields(cls)
    if hasattr(cls, "__pydantic_validator__"):
        raise ConfigError(f"{cls.__qualname__} is a pydantic dataclass; make it a BaseModel or a plain dataclass.")
    if "__dataclass_fields__" in cls.__dict__:
        return tuple(field.name for field in dataclasses.fields(cls))
    raise ConfigError(
        f"{cls.__qualname__} is not a dataclass, pydantic model, attrs class or msgspec Struct; make it one, and "
        "write @event or @command above the decorator that does."
    )


def _list_attrs_fields(cls: type) -> tuple[str, ...]:
    names = tuple(attribute.name for attribute in cls.__attrs_attrs__)  # type: ignore[attr-defined]
    private = [name for name in names if name.startswith("_")]
    if private:
        raise ConfigError(
            f"The field {private[0]} of {cls.__qualname__} starts with an underscore, and attrs fields that do are "
            "not encoded; rename it."
        )
    return names


def _iterate_children(value: object) -> Iterator[tuple[str, object]]:
    """Yield the values directly inside a value, each with the step that leads to it, such as `.price` or `[2]`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f".{key}" if isinstance(key, str) else f"[{type(key).__name__}]", child
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    else:
        for name in _list_value_fields(value):
            yield f".{name}", getattr(value, name, None)


def _list_value_fields(value: Any) -> Iterable[str]:
    cls = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if hasattr(cls, "__attrs_attrs__"):
        return [attribute.name for attribute in cls.__attrs_attrs__]
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(vars(value)) if _is_pydantic(cls) else ()
