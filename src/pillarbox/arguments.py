"""Checks of what Python code passes: a value of a wrong type gets a sentence that says what to pass instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from pillarbox.durations import check_duration, shorten
from pillarbox.errors import ConfigError, PillarboxError

__all__ = ["check_argument", "check_fields"]

_PLAIN: Final[Mapping[object, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "a whole number: pass an int"),
    float: ((int, float), "a number: pass an int or a float"),
    str: ((str,), "a text: pass a str"),
}
"""Type to what is taken for it, and what to say of anything else."""


def check_fields(settings: object) -> None:
    """Check the type of every field of the settings, see `check_argument`, and that no duration is below zero."""
    for name, hint in _list_hints(type(settings)).items():  # type: ignore[arg-type]  # a class has a hash
        value = getattr(settings, name)
        check_argument(value, name, hint)
        if isinstance(value, timedelta) and value < timedelta(0):
            raise ConfigError(f"{name}={shorten(value)} is below zero: pass a duration of zero or longer.")


def check_argument(value: object, name: str, hint: Any, *, error: type[PillarboxError] = ConfigError) -> None:
    """Raise an error that says what to pass, if the value is none of the hint's types.

    Durations, numbers, texts, choices, lists, dicts and our own classes are checked; other types are not.
    """
    for one, needed in _find_wrong(value, hint):
        if needed is timedelta:
            check_duration(one, name, error=error)
        raise error(f"{name}={shorten(one)} is not {needed}.")


@cache
def _list_hints(cls: type) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in msgspec.structs.fields(cls)}


def _find_wrong(value: object, hint: Any) -> Iterator[tuple[object, object]]:
    """Find the values that are wrong, each with what it should be: `timedelta`, or the end of a sentence."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is not None or NoneType not in arguments:
            wrong = [list(_find_wrong(value, one)) for one in arguments if one is not NoneType]
            yield from wrong[0] if all(wrong) else ()
    elif origin is Literal:
        if value not in arguments:
            yield value, _list_choices(arguments)
    elif isinstance(origin, type):
        yield from _find_wrong_collection(value, origin, arguments)
    elif hint in _PLAIN:
        kinds, needed = _PLAIN[hint]
        if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
            yield value, needed
    elif isinstance(hint, type):
        yield from _find_wrong_object(value, hint)


def _find_wrong_collection(value: object, origin: type, arguments: tuple[Any, ...]) -> Iterator[tuple[object, object]]:
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            yield value, "a dict"
        else:
            for one in value.values():
                yield from _find_wrong(one, arguments[-1])
    elif issubclass(origin, Sequence):
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            yield value, "a list"
        elif len(arguments) == 1 or arguments[-1] is ...:
            for one in value:
                yield from _find_wrong(one, arguments[0])


def _find_wrong_object(value: object, cls: type) -> Iterator[tuple[object, object]]:
    if issubclass(cls, Enum):
        choices = [member.value for member in cls]
        if value not in choices and value not in list(cls):
            yield value, _list_choices(choices)
    elif cls is timedelta:
        if not isinstance(value, timedelta):
            yield value, timedelta
    elif issubclass(cls, msgspec.Struct) and not isinstance(value, cls):
        yield value, f"a {cls.__name__}: pass {cls.__name__}(…)"


def _list_choices(choices: Sequence[object]) -> str:
    return f"one of {', '.join(map(repr, choices))}"
