"""Payloads to JSON bytes and back. No pickle, no class names on the wire: only what is registered is built."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from pillarbox.errors import DecodeError, PayloadNotSerializable
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.shapes import children, is_pydantic

__all__ = ["JSON", "Encoded", "decode", "encode", "encode_dict", "is_json"]

JSON: Final = "application/json"

_JSON_TYPE: Final = re.compile(
    r"(?:application|text)/(?:[\w.-]+\+)?json(?:\s*;.*)?|[\w.-]+/[\w.-]+\+json(?:\s*;.*)?", re.I
)
_DEPTH: Final = 100


class Encoded(Protocol):
    """Anything that carries an encoded payload: a `Message`, or a received `CloudEvent`."""

    @property
    def type(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...


@lru_cache(maxsize=256)
def is_json(content_type: str) -> bool:
    """Whether a content type promises JSON."""
    return _JSON_TYPE.fullmatch(content_type) is not None


# --- encoding ----------------------------------------------------------------------------------


def encode(value: object, name: str) -> bytes:
    """A registered instance, or a dict, as JSON; `PayloadNotSerializable` names type and field, never the value.

    A pydantic model is written by itself, so that its aliases and serializers hold, at any depth.
    """
    try:
        payload = _encoder.encode(value)
    except Exception:
        # The cause is left out: serializers of the user's own may quote the value.
        raise _not_serializable(value, name) from None
    if b"null" in payload and _holds_nan(value):
        raise _not_serializable(value, name)
    return payload


def encode_dict(value: dict[str, Any], name: str) -> bytes:
    """A dict as JSON. Its keys must be str at every depth: other keys would not come back as they were."""
    _check_keys(value, name=name, path="")
    return encode(value, name)


def _as_json(value: Any) -> msgspec.Raw:
    if not is_pydantic(type(value)):
        raise TypeError
    text = value.model_dump_json(by_alias=_by_alias(value))
    if "NaN" in text or "Infinity" in text:
        msgspec.json.decode(text, type=msgspec.Raw)  # a model may be set to write them bare, which is not JSON
    return msgspec.Raw(text.encode())


def _as_data(value: Any) -> Any:
    return value.model_dump(by_alias=_by_alias(value))


def _by_alias(model: Any) -> bool:
    """Validation reads aliases by default, so writing them is what comes back; the model's own setting wins."""
    return bool(model.model_config.get("serialize_by_alias", True))


_packer: Final = msgspec.msgpack.Encoder(enc_hook=_as_data)
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_encoder: Final = msgspec.json.Encoder(enc_hook=_as_json, decimal_format="string", uuid_format="canonical")


def _holds_nan(value: object) -> bool:
    """Whether NaN or infinity is in it, which JSON has no way to say: they come out as null.

    MessagePack keeps them, as bytes that rarely stand for anything else: looking for those first is five times
    faster than walking through the value.
    """
    try:
        if not _NOT_FINITE.search(_packer.encode(value)):
            return False
    except Exception:  # noqa: S110 - an int too big for MessagePack, for one
        pass
    return _is_nan_in(msgspec.to_builtins(value, enc_hook=_as_data))


def _is_nan_in(data: object) -> bool:
    if isinstance(data, float):
        return not math.isfinite(data)
    if isinstance(data, dict):
        return any(map(_is_nan_in, data.values()))
    return isinstance(data, (list, tuple, set, frozenset)) and any(map(_is_nan_in, data))


def _check_keys(value: object, *, name: str, path: str) -> None:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise PayloadNotSerializable(
                    f"The payload of {name} has a key of type {type(key).__name__} at {path or 'its top'}; "
                    "keys of a dict payload must be str."
                )
    if isinstance(value, (dict, list, tuple)) and path.count(".") + path.count("[") < _DEPTH:
        for step, child in children(value):
            _check_keys(child, name=name, path=path + step)


def _not_serializable(value: object, name: str) -> PayloadNotSerializable:
    path, culprit = _blamed(value)
    where = f"Field {path[1:] if path.startswith('.') else path} of {name}" if path else f"The payload of {name}"
    if isinstance(culprit, float):
        return PayloadNotSerializable(f"{where} is not a finite number, and JSON has no other; use None or a str.")
    if isinstance(culprit, str):
        return PayloadNotSerializable(f"{where} is a str with half a surrogate pair, which UTF-8 cannot hold.")
    advice = "convert it to plain data, or give bytes with content_type="
    if is_pydantic(type(culprit)):
        advice = "give that model a serializer for it (for bytes: ser_json_bytes and val_json_bytes = 'base64')"
    return PayloadNotSerializable(
        f"{where} is, or holds, a {type(culprit).__name__} that cannot be written as JSON; {advice}."
    )


def _blamed(value: object) -> tuple[str, object]:
    """The innermost part that does not encode, and the way to it."""
    path = ""
    for _ in range(_DEPTH):
        step = next(((way, child) for way, child in children(value) if not _encodes(child)), None)
        if step is None:
            break
        path, value = path + step[0], step[1]
    return path, value


def _encodes(value: object) -> bool:
    try:
        return b"null" not in _encoder.encode(value) or not _holds_nan(value)
    except Exception:
        return False


# --- decoding ----------------------------------------------------------------------------------


def decode(message: Encoded, *, types: Types = DEFAULT_TYPES) -> Any:
    """The payload as an instance of the class registered for its type.

    Of a type that is not registered, JSON becomes plain data and anything else stays bytes. Fields the class
    does not know are ignored. `DecodeError` says what is malformed or of the wrong type.
    """
    definition = types.named(message.type)
    if definition is None:
        return _plain(message) if is_json(message.content_type) else message.payload
    if not is_json(message.content_type):
        raise DecodeError(
            f"A message of type {message.type} has content type {message.content_type!r}, which "
            f"{definition.cls.__qualname__} cannot be read from; read its payload as bytes."
        )
    try:
        return _decoder(definition.cls)(message.payload)
    except Exception as error:
        raise DecodeError(
            f"A message of type {message.type} is not a {definition.cls.__qualname__}: {_reason(error)}"
        ) from None


def _plain(message: Encoded) -> Any:
    try:
        return msgspec.json.decode(message.payload)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"A message of type {message.type} is not JSON: {_reason(error)}") from None


@lru_cache(maxsize=1024)
def _decoder(cls: Any) -> Callable[[bytes], Any]:
    if is_pydantic(cls):
        return cls.model_validate_json  # type: ignore[no-any-return]
    return msgspec.json.Decoder(cls, dec_hook=_from_data).decode


def _from_data(cls: Any, data: Any) -> Any:
    """Called for what msgspec does not know: a pydantic model inside another class."""
    if not (isinstance(cls, type) and is_pydantic(cls)):
        raise NotImplementedError(f"{cls!r} cannot be read from JSON")
    try:
        # By way of JSON: what a model takes from JSON and from Python objects differs.
        return cls.model_validate_json(msgspec.json.encode(data))  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """One line, without the input that pydantic would quote."""
    details = getattr(error, "errors", None)
    if not callable(details):
        text = str(error) or type(error).__name__
    else:
        found = details(include_input=False, include_url=False, include_context=False)
        text = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found)
    return text if text.endswith(".") else f"{text}."
