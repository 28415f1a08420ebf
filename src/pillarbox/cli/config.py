"""`pillarbox config`: the configuration in force, and the origin of every value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal

import click

from pillarbox.cli._logs import LogSettings
from pillarbox.cli._options import configuration_options
from pillarbox.cli._output import echo, show
from pillarbox.cli._table import Column, cut, draw_table, find_width, measure, to_line, wide_option
from pillarbox.config import Config
from pillarbox.dashboard.settings import DashboardSettings
from pillarbox.operations import configuration
from pillarbox.operations.configuration import ConfigEntry
from pillarbox.settings import KeyPath, format_key

__all__ = ["ConfigEntry", "config", "format_toml", "format_toml_value", "list_entries", "show_config"]

_EPILOG = """\b
Example:
  pillarbox config show --store sqlite:///shop.db --to billing=https://billing.example/hooks -o toml
"""

_VALUE_CELLS: Final = 24
"""Cells of a terminal that are left for a value and the frame."""
_LEAST_NAME: Final = 4
_COLUMNS: Final = (Column("key"), Column("value", least=16), Column("origin", rank=1, least=14))


@click.group(epilog="\b\nExample:\n  pillarbox config show\n")
def config() -> None:
    """See the configuration."""


@config.command("show", epilog=_EPILOG)
@configuration_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "toml"]), default="text", show_default=True,
              envvar="PILLARBOX_OUTPUT", show_envvar=True, help="How the result is printed.")  # fmt: skip
@wide_option
def show_config(config: Config, output: Literal["text", "json", "jsonl", "toml"]) -> None:
    """Show every value in force and where it comes from: default, file, environment or flag. Secrets are ***."""
    entries = list_entries(config)
    if output == "toml":
        echo(format_toml(entries))
        return
    width = find_width()
    room = None if width is None else width - _VALUE_CELLS
    rows = [(_format_path(entry.path, room), _format_value(entry.value), entry.origin_text) for entry in entries]
    document = {"file": config.file_name if config.found else None, **_nest(entries)}
    show(document, text=draw_table(_COLUMNS, rows), output=output)


def list_entries(config: Config) -> list[ConfigEntry]:
    """List every value in force, section by section. `ConfigError` where something is wrong."""
    return configuration.list_entries(config, more=[(("log",), LogSettings), (("dashboard",), DashboardSettings)])


def _format_path(path: KeyPath, room: int | None) -> str:
    """Write a key; of one that is too long the name of the destination or store is cut, and not that of the option."""
    text = format_key(path)
    if room is None or len(path) < 3 or (over := measure(text) - room) <= 0:
        return text
    return f"{path[0]}.{cut(path[1], max(measure(path[1]) - over, _LEAST_NAME))}.{format_key(path[2:])}"


def _format_value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(_format_value, value)) or "none"
        case dict():
            return " ".join(f"{name}={_format_value(inner)}" for name, inner in value.items() if inner)
    return str(value)


def _nest(entries: list[ConfigEntry]) -> dict[str, object]:
    """Arrange entries as tables inside tables."""
    document: dict[str, Any] = {}
    for entry in entries:
        table = document
        for name in entry.path[:-1]:
            table = table.setdefault(name, {})
        table[entry.path[-1]] = {"value": entry.value, "origin": entry.origin.kind, "where": entry.origin.where or None}
    return document


# --- TOML ---


def format_toml(entries: Iterable[ConfigEntry]) -> str:
    """Format entries as a configuration file with the same effect; a value that is not set becomes a comment."""
    tables: dict[KeyPath, list[ConfigEntry]] = {}
    for entry in entries:
        tables.setdefault(entry.path[:-1], []).append(entry)
    return "\n\n".join(
        "\n".join([f"[{format_key(path)}]", *map(_format_line, inside)]) for path, inside in tables.items()
    )


def _format_line(entry: ConfigEntry) -> str:
    key, value = format_key(entry.path[-1:]), entry.value
    line = f"# {key} is not set" if value is None else f"{key} = {format_toml_value(value)}"
    return f"{line}  # {to_line(entry.origin_text)}"


def format_toml_value(value: object) -> str:
    """Format a value as the file holds it."""
    match value:
        case list():
            return f"[{', '.join(map(format_toml_value, value))}]"
        case dict():
            pairs = [
                f"{format_key((name,))} = {format_toml_value(inner)}"
                for name, inner in value.items()
                if inner is not None
            ]
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
    # A JSON string is a TOML string too, except for pairs of surrogates, which TOML writes as one character.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escape_toml(letter) for letter in text)


def _escape_toml(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x1_0000 else f"\\U{ord(letter):08x}"
