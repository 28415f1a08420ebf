"""Entries as a TOML file, each with its origin behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pillarbox.cli.effective import Entry
from pillarbox.config.origins import Path, key_text

__all__ = ["toml_text"]


def toml_text(entries: Iterable[Entry]) -> str:
    """A file that says the same; what is not set stands in it as a comment."""
    tables: dict[Path, list[Entry]] = {}
    for entry in entries:
        tables.setdefault(entry.path[:-1], []).append(entry)
    return "\n\n".join(_table_text(path, inside) for path, inside in tables.items())


def _table_text(path: Path, entries: list[Entry]) -> str:
    return "\n".join([f"[{key_text(path)}]", *map(_line, entries)])


def _line(entry: Entry) -> str:
    key, value = key_text(entry.path[-1:]), entry.value
    line = f"# {key} is not set" if value is None else f"{key} = {_value(value)}"
    return f"{line}  # {entry.told_by}"


def _value(value: object) -> str:
    match value:
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            pairs = (f"{key_text((name,))} = {_value(inner)}" for name, inner in value.items() if inner is not None)
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
    # A JSON string is one of TOML, but for a control character that JSON lets through.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
