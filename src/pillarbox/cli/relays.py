"""`pillarbox relays`: the relays that are alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, output_option, say, show_rows
from pillarbox.cli._table import Column, draw_table, wide_option
from pillarbox.operations.documents import count_lanes, to_relay_documents
from pillarbox.relay.configuration import read_relay_section

__all__ = ["relays"]

_COLUMNS: Final = (
    Column("relay", least=9),
    Column("service", least=8),
    Column("host", rank=2, least=10),
    Column("pid", rank=3),
    Column("version", rank=4, least=8),
    Column("serves", is_below=True),
    Column("cannot reach", is_below=True),
    Column("lanes"),
    Column("up for", rank=1),
)


@click.command(epilog="\b\nExample:\n  pillarbox relays\n")
@target_options
@wide_option
@output_option
def relays(target: Target, output: OutputFormat) -> None:
    """List the relays that are alive, what they serve and what they can reach."""
    lease = read_relay_section(target.config).settings.lease
    registry = target.run(lambda store: store.registry(lease=lease), reads_only=True)
    if not registry.relays:
        say("No relay is alive: messages wait. Start one with `pillarbox relay`.")
    has_labels = any(one.labels for one in registry.relays)
    columns = _COLUMNS + ((Column("labels", is_below=True),) if has_labels else ())
    rows = [
        (
            str(one.relay_id), one.service, one.host, str(one.pid), one.version, ", ".join(one.destinations),
            ", ".join(sorted(set(one.destinations) - set(one.reachable))) or "none",
            str(count_lanes(registry, one.relay_id)), format_age(one.started_at, registry.now),
            *([_format_labels(one.labels)] if has_labels else ()),
        )
        for one in registry.relays
    ]  # fmt: skip
    show_rows("relays", to_relay_documents(registry), text=draw_table(columns, rows) if rows else "", output=output)


def _format_labels(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in labels.items())
