"""Settings classes, and how texts and TOML values become them.

A settings class is a `msgspec.Struct`. Two readers fill one:

- `parse_value` reads one field of a class whose fields all have defaults. The file, the environment and flags give
  such fields one by one, each with its `ConfigOrigin`; `pillarbox.config` puts them together.
- `parse_options` reads all options of a transport or receiver at once, from a URL's query, a table or code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pillarbox.durations import FOREVER, LONGEST, format_duration, parse_duration
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

__all__ = [
    "DEFAULT_ORIGIN",
    "ConfigOrigin",
    "ConfigValue",
    "Field",
    "KeyPath",
    "Layer",
    "build_settings",
    "format_key",
    "join_words",
    "list_fields",
    "parse_options",
    "parse_value",
    "suggest_nearest",
    "to_plain",
]

S = TypeVar("S", bound=msgspec.Struct)

KeyPath: TypeAlias = tuple[str, ...]
"""Position of a value in the file: `("relay", "retention", "failed")`."""


class ConfigOrigin(msgspec.Struct, frozen=True):
    """Place that a value comes from: the default, the file, the environment or a flag."""

    kind: Literal["default", "file", "environment", "flag"]
    where: str = ""
    """Name of the file, the variable or the flag."""

    def describe(self, path: KeyPath) -> str:
        """Name the value at that path, as the subject of an error sentence."""
        return f"{format_key(path)} in {self.where}" if self.kind == "file" else self.where


DEFAULT_ORIGIN: Final = ConfigOrigin("default")


class ConfigValue(msgspec.Struct, frozen=True):
    """A value as it was written, not yet converted, and its origin."""

    value: object
    origin: ConfigOrigin

    def __repr__(self) -> str:
        # The value may be a URL with a password.
        return f"ConfigValue(***, {self.origin!r})"


Layer: TypeAlias = Mapping[KeyPath, ConfigValue]
"""All values of one origin. Paths are relative to the section that is being read."""


class Field(msgspec.Struct, frozen=True):
    """One option of a settings class: its position in the section, its type and its default."""

    path: KeyPath
    type: Any
    default: object


def list_fields(cls: type[msgspec.Struct], *, without: Sequence[str] = ()) -> tuple[Field, ...]:
    """List every option of a settings class whose fields all have defaults.

    A field that is a settings class itself is a table: its options are listed below its name.
    """
    return tuple(_list_fields(cls(), at=(), without=without))


def _list_fields(defaults: msgspec.Struct, *, at: KeyPath, without: Sequence[str] = ()) -> list[Field]:
    hints = get_type_hints(type(defaults))
    fields: list[Field] = []
    for name in defaults.__struct_fields__:
        default = getattr(defaults, name)
        if name in without:
            continue
        if isinstance(default, msgspec.Struct):
            fields += _list_fields(default, at=(*at, name))
        else:
            fields.append(Field((*at, name), hints[name], default))
    return fields


def build_settings(cls: type[S], values: Mapping[KeyPath, object]) -> S:
    """Build the settings from these values, with defaults for the rest."""
    return _override(cls(), values, at=())


def _override(defaults: S, values: Mapping[KeyPath, object], *, at: KeyPath) -> S:
    fields: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        default = getattr(defaults, name)
        if isinstance(default, msgspec.Struct):
            fields[name] = _override(default, values, at=(*at, name))
        else:
            fields[name] = values.get((*at, name), default)
    # Not `msgspec.structs.replace`: it skips `__post_init__`, which checks the values.
    return type(defaults)(**fields)


# --- one value of a file, a variable or a flag ---


def parse_value(hint: Any, value: object) -> Any:
    """Convert a value to the type of its field; `ConfigError` holds the end of a sentence: "must be …"."""
    if get_origin(hint) in (Union, UnionType):
        return _parse_optional(hint, value)
    if get_origin(hint) is Literal:
        return _parse_choice([str(choice) for choice in get_args(hint)], value)
    if get_origin(hint) is Mapping:
        return _parse_texts(value)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Sequence):
        return _parse_list(get_args(hint)[0], value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_parse_choice([str(choice.value) for choice in hint], value))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _parse_table(hint, value)
    return _PARSERS[hint](value)


def _parse_optional(hint: Any, value: object) -> Any:
    # TOML has no null: "none" stands for it, and "forever" for a number without a limit.
    (kind,) = (choice for choice in get_args(hint) if choice is not NoneType)
    return None if value == "none" or (value == "forever" and kind is int) else parse_value(kind, value)


def _parse_list(hint: Any, value: object) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [] if value == "none" else [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise ConfigError("must be a list, or a text with commas")
    return tuple(parse_value(hint, part) for part in value)


def _parse_texts(value: object) -> dict[str, str]:
    """Read a table of texts, or a text such as `team=shop, zone=eu`."""
    if isinstance(value, str):
        parts = [] if value == "none" else [part.partition("=") for part in value.split(",")]
        if all(equals for _, equals, _ in parts):
            return {name.strip(): text.strip() for name, _, text in parts}
    elif isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
        return dict(value)
    raise ConfigError("must be a table of texts, or a text such as team=shop,zone=eu")


def _parse_choice(choices: Sequence[str], value: object) -> str:
    if value not in choices:
        near = get_close_matches(str(value).lower(), choices, n=1)
        raise ConfigError(f"must be one of {', '.join(choices)}" + (f": the nearest is {near[0]}" if near else ""))
    return str(value)


def _parse_table(cls: type[msgspec.Struct], value: object) -> msgspec.Struct:
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a table with {', '.join(cls.__struct_fields__)}")
    for name in value:
        if name not in cls.__struct_fields__:
            raise ConfigError(f"has an unknown key {name!r}: {suggest_nearest(name, cls.__struct_fields__)}")
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in value:
            raise ConfigError(f"lacks the key {field.name!r}: add it")
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot be read: {str(error).replace('`', '')}") from None


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("must be a text")
    return value


def _parse_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(_parse_text(value))
    except (ConfigError, ValueError):
        raise ConfigError("must be a whole number") from None


def _parse_float(value: object) -> float:
    # `_parse_text` refuses a bool, which `float` would take for 0 or 1.
    try:
        number = float(_parse_text(value)) if isinstance(value, (str, bool)) else float(value)  # type: ignore[arg-type]
    except (ConfigError, ValueError, TypeError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("must be a number")
    return number


_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    raise ConfigError("must be true or false")


def _parse_timedelta(value: object) -> timedelta:
    if value == 0 and not isinstance(value, bool):
        return timedelta(0)
    try:
        length = parse_duration(_parse_text(value))
    except ConfigError:
        raise ConfigError('must be a duration, such as "250ms", "30s", "5m", "1h30m" or "7d"') from None
    if LONGEST < length < FOREVER:
        raise ConfigError("is longer than a hundred years; write forever where that is meant")
    return length


_PARSERS: Final[Mapping[Any, Callable[[object], Any]]] = {
    str: _parse_text,
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    timedelta: _parse_timedelta,
}


def to_plain(value: object) -> object:
    """Convert a value back to what the file would hold; None where nothing is set."""
    match value:
        case timedelta():
            return format_duration(value)
        case Enum():
            return value.value
        case msgspec.Struct():
            return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {str(name): to_plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [to_plain(part) for part in value]
    return value


# --- all options of a transport or receiver ---


def parse_options(cls: type[S], options: Mapping[str, object], *, transport: str) -> S:
    """Build the settings from these options; `ConfigError` names the option that is wrong, never its value.

    Texts are converted to the field's type: `"15s"` to a duration, `"true"` to a boolean, `"400,422"` to a set of
    numbers. A field with several values takes a single one too.
    """
    hints = get_type_hints(cls)
    known = [name for name in cls.__struct_fields__ if name in hints]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ConfigError(
                f"The {transport} transport has no option {name!r}; it has {join_words(sorted(known))}."
                + (f" Did you mean {near[0]}?" if near else "")
                + (f" A part of the endpoint's own query is written query.{name}=…" if "query" in known else "")
            )
    values = {name: _prepare(hints[name], value, name=name) for name, value in options.items()}
    try:
        return msgspec.convert(values, cls, strict=False, dec_hook=_decode_secret)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, hints, transport=transport)) from None


def _prepare(hint: Any, value: object, *, name: str) -> object:
    """Convert what msgspec does not: durations, and lists written with commas."""
    if hint is timedelta and not isinstance(value, timedelta):
        try:
            return parse_duration(str(value))
        except ConfigError:
            raise ConfigError(
                f"The option {name} is not a duration; write for example 500ms, 15s, 2m or 1h30m."
            ) from None
    if get_origin(hint) in (tuple, frozenset) and isinstance(value, (str, int)):
        # A secret may contain a comma: several are given as a list.
        is_splittable = isinstance(value, str) and get_args(hint)[0] is not Secret
        return [part.strip() for part in str(value).split(",")] if is_splittable else [value]
    return value


def _decode_secret(cls: type, value: object) -> object:
    if cls is not Secret or not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return Secret(value)


_VALIDATION_ERROR: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$\.(?P<name>\w+)[^`]*`)?", re.DOTALL)
"""Shape of msgspec's messages: "Expected `int`, got `str` - at `$.batch`"."""


_NEEDED: Final[Mapping[type, str]] = {
    bool: "must be true or false", int: "must be a whole number", float: "must be a number",
}  # fmt: skip


def _explain(error: msgspec.ValidationError, hints: Mapping[str, Any], *, transport: str) -> str:
    match = _VALIDATION_ERROR.fullmatch(str(error))
    if match is None or match["name"] is None:
        return f"The {transport} transport's options are incomplete: {error}."
    name = match["name"]
    parts = get_args(hints[name])
    options = [option for part in parts for option in (get_args(part) or (part,))]  # `Literal[…] | None` is nested
    choices = [str(option) for option in options if isinstance(option, str | int)]
    if choices:
        return f"The option {name} of the {transport} transport is one of {join_words(choices, last='or')}."
    for kind, needed in _NEEDED.items():
        if kind in (hints[name], *parts):
            return f"The option {name} of the {transport} transport {needed}."
    reason = match["reason"].replace("`", "").replace("Expected", "expected")
    return f"The option {name} of the {transport} transport cannot be read: {reason}."


# --- words for error sentences ---

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def format_key(path: KeyPath) -> str:
    """Write a path as TOML does: `relay.retention.failed`."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in path)


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the nearest known word, or all of them when none is near."""
    words = sorted(set(known))
    if near := get_close_matches(word, words, n=1):
        return f"the nearest known is {near[0]}"
    return f"known are {', '.join(words)}"


def join_words(words: Sequence[str], *, last: str = "and") -> str:
    """Join words as a sentence does: `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
