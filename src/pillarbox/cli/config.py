"""`pillarbox config`: what is in force, and who said so."""

from __future__ import annotations

from typing import Any, Literal

import click

from pillarbox.cli.configuring import configuration_options
from pillarbox.cli.effective import Entry, effective
from pillarbox.cli.output import show, table
from pillarbox.cli.toml import toml_text
from pillarbox.config import Config
from pillarbox.config.origins import key_text

__all__ = ["config"]

_EPILOG = """\b
Example:
  pillarbox config show --store sqlite:///shop.db --to billing=https://billing.example/hooks -o toml
"""


@click.group(epilog="\b\nExample:\n  pillarbox config show\n")
def config() -> None:
    """See the configuration."""


@config.command("show", epilog=_EPILOG)
@configuration_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "toml"]), default="text", show_default=True,
              envvar="PILLARBOX_OUTPUT", show_envvar=True, help="How the result is printed.")  # fmt: skip
def show_config(config: Config, output: Literal["text", "json", "jsonl", "toml"]) -> None:
    """Show every value in force and where it comes from: default, file, environment or flag. Secrets are ***."""
    entries = effective(config)
    if output == "toml":
        click.echo(toml_text(entries))
        return
    rows = [(key_text(entry.path), _text(entry.value), entry.told_by) for entry in entries]
    document = {"file": config.file_name if config.found else None, **_nested(entries)}
    show(document, text=table(("key", "value", "origin"), rows), output=output)


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(_text, value)) or "none"
        case dict():
            return " ".join(f"{name}={_text(inner)}" for name, inner in value.items() if inner)
    return str(value)


def _nested(entries: list[Entry]) -> dict[str, object]:
    document: dict[str, Any] = {}
    for entry in entries:
        place = document
        for name in entry.path[:-1]:
            place = place.setdefault(name, {})
        place[entry.path[-1]] = {"value": entry.value, "origin": entry.origin.kind, "where": entry.origin.where or None}
    return document
