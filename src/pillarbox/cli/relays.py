"""`pillarbox relays`: the relays that are alive."""

from __future__ import annotations

from collections.abc import Mapping

import click

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, format_table, output_option, say, show_rows
from pillarbox.operations.documents import count_lanes, to_relay_documents
from pillarbox.relay.configuration import read_relay_section

__all__ = ["relays"]


@click.command(epilog="\b\nExample:\n  pillarbox relays\n")
@target_options
@output_option
def relays(target: Target, output: OutputFormat) -> None:
    """List the relays that are alive, what they serve and what they can reach."""
    lease = read_relay_section(target.config).settings.lease
    registry = target.run(lambda store: store.registry(lease=lease), reads_only=True)
    if not registry.relays:
        say("No relay is alive: messages wait. Start one with `pillarbox relay`.")
    has_labels = any(one.labels for one in registry.relays)
    headings: tuple[str, ...] = (
        "relay",
        "service",
        "host",
        "pid",
        "version",
        "serves",
        "cannot reach",
        "lanes",
        "up for",
    )
    if has_labels:
        headings += ("labels",)
    rows = [
        (
            str(one.relay_id), one.service, one.host, str(one.pid), one.version, ", ".join(one.destinations),
            ", ".join(sorted(set(one.destinations) - set(one.reachable))) or "none",
            str(count_lanes(registry, one.relay_id)), format_age(one.started_at, registry.now),
            *([_format_labels(one.labels)] if has_labels else ()),
        )
        for one in registry.relays
    ]  # fmt: skip
    show_rows("relays", to_relay_documents(registry), text=format_table(headings, rows) if rows else "", output=output)


def _format_labels(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in labels.items())
