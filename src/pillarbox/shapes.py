"""The four kinds of classes a message can be, and how to look into one. Imports none of their libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pillarbox.errors import ConfigError

__all__ = ["children", "field_names", "is_pydantic"]


def is_pydantic(cls: type) -> bool:
    """A pydantic (v2) model class."""
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_validate_json")


def field_names(cls: Any) -> tuple[str, ...]:
    """The fields of a dataclass, pydantic model, attrs class or msgspec Struct; `ConfigError` for anything else."""
    if not callable(getattr(cls, "mro", None)):
        raise ConfigError(f"A message type must be a class, and {cls!r} is not.")
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if is_pydantic(cls):
        return tuple(cls.model_fields)
    if "__attrs_attrs__" in cls.__dict__:
        return _attrs_names(cls)
    if hasattr(cls, "__pydantic_validator__"):
        raise ConfigError(f"{cls.__qualname__} is a pydantic dataclass; make it a BaseModel or a plain dataclass.")
    if "__dataclass_fields__" in cls.__dict__:
        return tuple(field.name for field in dataclasses.fields(cls))
    raise ConfigError(
        f"{cls.__qualname__} is not a dataclass, pydantic model, attrs class or msgspec Struct; make it one, and "
        "write @event or @command above the decorator that does."
    )


def _attrs_names(cls: type) -> tuple[str, ...]:
    names = tuple(attribute.name for attribute in cls.__attrs_attrs__)  # type: ignore[attr-defined]
    private = [name for name in names if name.startswith("_")]
    if private:
        raise ConfigError(
            f"The field {private[0]} of {cls.__qualname__} starts with an underscore, and attrs fields that do are "
            "not encoded; rename it."
        )
    return names


def children(value: object) -> Iterator[tuple[str, object]]:
    """What a value directly holds, each with the step that leads to it, such as `.price` or `[2]`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f".{key}" if isinstance(key, str) else f"[{type(key).__name__}]", child
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    else:
        for name in _own_names(value):
            yield f".{name}", getattr(value, name, None)


def _own_names(value: Any) -> Iterable[str]:
    cls = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if hasattr(cls, "__attrs_attrs__"):
        return [attribute.name for attribute in cls.__attrs_attrs__]
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(vars(value)) if is_pydantic(cls) else ()
