"""Values as the server reads them where it knows the type. Pure.

A parameter without a type of its own gets the one that the statement gives it there, as with asyncpg.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

__all__ = ["literal"]


def literal(value: object) -> str | None:
    """The value as text; None is null."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case list() | tuple():
            return _array(value)
    raise TypeError(f"A {type(value).__name__} is not among the values that the store passes.")


def _array(values: Sequence[object]) -> str:
    if all(type(value) is int for value in values):  # ids, a thousand at a time
        return f"{{{','.join(map(str, values))}}}"
    return f"{{{','.join(_element(literal(value)) for value in values)}}}"


def _element(text: str | None) -> str:
    if text is None:
        return "null"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
