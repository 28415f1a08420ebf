"""Options to a settings class, the same from a URL's query, a TOML table and code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from pillarbox.durations import duration
from pillarbox.errors import ConfigError
from pillarbox.transports.secret import Secret

__all__ = ["listed", "settings_from"]

S = TypeVar("S", bound=msgspec.Struct)


def settings_from(cls: type[S], options: Mapping[str, object], *, transport: str) -> S:
    """The settings that these options ask for; `ConfigError` names the option that is wrong, never its value.

    Texts become what the field is: `"15s"` a duration, `"true"` a boolean, `"400,422"` a set of numbers. A field
    with several values takes one alone too.
    """
    hints = get_type_hints(cls)
    known = [name for name in cls.__struct_fields__ if name in hints]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"The {transport} transport has no option {name!r}; it has {listed(sorted(known))}."
                + (f" A part of the endpoint's own query is written query.{name}=…" if "query" in known else "")
            )
    values = {name: _prepared(hints[name], value, name=name) for name, value in options.items()}
    try:
        return msgspec.convert(values, cls, strict=False, dec_hook=_secret)
    except msgspec.ValidationError as error:
        raise ConfigError(_reason(error, cls, transport=transport)) from None


def listed(words: Sequence[str], *, last: str = "and") -> str:
    """The words as a sentence has them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _prepared(hint: Any, value: object, *, name: str) -> object:
    """What msgspec does not do by itself."""
    if hint is timedelta and not isinstance(value, timedelta):
        return _duration(str(value), name=name)
    if get_origin(hint) in (tuple, frozenset) and isinstance(value, (str, int)):
        split = isinstance(value, str) and get_args(hint)[0] is not Secret
        return [part.strip() for part in str(value).split(",")] if split else [value]
    return value


def _duration(text: str, *, name: str) -> timedelta:
    try:
        return duration(text)
    except (ConfigError, OverflowError):
        raise ConfigError(f"The option {name} is not a duration; write for example 500ms, 15s, 2m or 1h30m.") from None


def _secret(cls: type, value: object) -> object:
    if cls is not Secret or not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return Secret(value)


_PATH: Final = re.compile(r"(?P<what>.*?)(?: - at `\$\.(?P<name>\w+)[^`]*`)?", re.DOTALL)


def _reason(error: msgspec.ValidationError, cls: type[msgspec.Struct], *, transport: str) -> str:
    match = _PATH.fullmatch(str(error))
    name = match["name"] if match else None
    if name is None:
        return f"The {transport} transport's options are incomplete: {error}."
    choices = [str(choice) for choice in get_args(get_type_hints(cls)[name]) if isinstance(choice, str)]
    if choices:
        return f"The option {name} of the {transport} transport is one of {listed(choices, last='or')}."
    return f"The option {name} of the {transport} transport cannot be read: {_plain(match)}."


def _plain(match: re.Match[str] | None) -> str:
    return "" if match is None else match["what"].replace("`", "").replace("Expected", "expected")
