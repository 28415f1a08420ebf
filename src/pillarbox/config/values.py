"""From what people write to what a field is, and back. The same for the file, the environment and flags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from pillarbox.config.nearest import nearest
from pillarbox.durations import FOREVER, duration, duration_text
from pillarbox.errors import ConfigError

__all__ = ["LONGEST", "plain", "value_as"]

LONGEST: Final = timedelta(days=36_500)
"""Longer than this is `forever`: dates end somewhere."""
_YES_NO: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def value_as(hint: Any, value: object) -> Any:
    """The value as a field of that type has it; `ConfigError` says what was expected, as the end of a sentence."""
    if get_origin(hint) in (Union, UnionType):
        return _optional(hint, value)
    if get_origin(hint) is Literal:
        return _one_of([str(choice) for choice in get_args(hint)], value)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Sequence):
        return _several(get_args(hint)[0], value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_one_of([str(choice.value) for choice in hint], value))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _table(hint, value)
    return _SIMPLE[hint](value)


def _optional(hint: Any, value: object) -> Any:
    """Nothing has a word of its own, because TOML has none for it."""
    (kind,) = (choice for choice in get_args(hint) if choice is not NoneType)
    return None if value == "none" or (value == "forever" and kind is int) else value_as(kind, value)


def _several(hint: Any, value: object) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [] if value == "none" else [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise ConfigError("must be a list, or a text with commas")
    return tuple(value_as(hint, part) for part in value)


def _one_of(choices: Sequence[str], value: object) -> str:
    if value not in choices:
        raise ConfigError(f"must be one of {', '.join(choices)}")
    return str(value)


def _table(cls: type[msgspec.Struct], value: object) -> msgspec.Struct:
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a table with {', '.join(cls.__struct_fields__)}")
    for name in value:
        if name not in cls.__struct_fields__:
            raise ConfigError(f"has an unknown key {name!r}: {nearest(name, cls.__struct_fields__)}")
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot be read: {str(error).replace('`', '')}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("must be a text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(_text(value))
    except (ConfigError, ValueError):
        raise ConfigError("must be a whole number") from None


def _number(value: object) -> float:
    try:
        number = float(_text(value)) if isinstance(value, (str, bool)) else float(value)  # type: ignore[arg-type]
    except (ConfigError, ValueError, TypeError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("must be a number")
    return number


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _YES_NO:
        return _YES_NO[value.lower()]
    raise ConfigError("must be true or false")


def _duration(value: object) -> timedelta:
    if value == 0 and not isinstance(value, bool):
        return timedelta(0)
    try:
        length = duration(_text(value))
    except ConfigError:
        raise ConfigError('must be a duration, such as "250ms", "30s", "5m", "1h30m" or "7d"') from None
    if LONGEST < length < FOREVER:
        raise ConfigError("is longer than a hundred years; write forever where that is meant")
    return length


_SIMPLE: Final[Mapping[Any, Any]] = {str: _text, int: _whole, float: _number, bool: _switch, timedelta: _duration}


def plain(value: object) -> object:
    """The value as the file would have it; None where nothing is set."""
    match value:
        case timedelta():
            return duration_text(value)
        case Enum():
            return value.value
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {str(name): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return value
