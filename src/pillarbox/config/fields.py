"""The options of a settings class, with the tables inside it laid out flat, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import msgspec

from pillarbox.config.origins import Path

__all__ = ["Field", "built", "fields_of"]

S = TypeVar("S", bound=msgspec.Struct)


class Field(msgspec.Struct, frozen=True):
    """One option: where it stands in its section, what it may be, and what it is if nobody says."""

    path: Path
    type: Any
    default: object


def fields_of(cls: type[msgspec.Struct], *, without: Sequence[str] = ()) -> tuple[Field, ...]:
    """Every option of a settings class whose fields all have defaults; a field that is such a class is a table."""
    return tuple(_laid_out(cls(), at=(), without=without))


def _laid_out(defaults: msgspec.Struct, *, at: Path, without: Sequence[str] = ()) -> list[Field]:
    hints = get_type_hints(type(defaults))
    found: list[Field] = []
    for name in defaults.__struct_fields__:
        default = getattr(defaults, name)
        if name in without:
            continue
        if isinstance(default, msgspec.Struct):
            found += _laid_out(default, at=(*at, name))
        else:
            found.append(Field((*at, name), hints[name], default))
    return found


def built(cls: type[S], values: Mapping[Path, object]) -> S:
    """The settings with these values, and defaults for the rest."""
    return _rebuilt(cls(), values, at=())


def _rebuilt(defaults: S, values: Mapping[Path, object], *, at: Path) -> S:
    changed: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        default = getattr(defaults, name)
        if isinstance(default, msgspec.Struct):
            changed[name] = _rebuilt(default, values, at=(*at, name))
        elif (*at, name) in values:
            changed[name] = values[*at, name]
    # Not `msgspec.structs.replace`: it does not check the result.
    kept = {name: getattr(defaults, name) for name in defaults.__struct_fields__}
    return type(defaults)(**kept | changed)
