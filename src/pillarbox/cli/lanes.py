"""`pillarbox lanes`: the owners of each destination's lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from pillarbox.cli._options import Target, complete_destination, target_options
from pillarbox.cli._output import OutputFormat, output_option, say, show_rows
from pillarbox.cli._table import Column, draw_table, wide_option
from pillarbox.operations.documents import group_lanes, to_lane_documents
from pillarbox.relay.configuration import read_relay_section

__all__ = ["lanes"]

_COLUMNS: Final = (Column("destination", least=12), Column("relay", least=9), Column("lanes", is_below=True))


@click.command(epilog="\b\nExample:\n  pillarbox lanes --destination billing\n")
@click.option("--destination", metavar="NAME", envvar="PILLARBOX_DESTINATION", show_envvar=True,
              shell_complete=complete_destination, help="Only of this destination.")  # fmt: skip
@target_options
@wide_option
@output_option
def lanes(target: Target, destination: str | None, output: OutputFormat) -> None:
    """Show which relay owns which lanes of each destination, and which lanes nobody owns."""
    lease = read_relay_section(target.config).settings.lease
    registry = target.run(lambda store: store.registry(lease=lease), reads_only=True)
    names = sorted({*registry.owners, *(name for one in registry.relays for name in one.destinations)})
    names = [name for name in names if destination in (None, name)]
    owned = [(name, relay_id, numbers) for name in names for relay_id, numbers in group_lanes(registry, name)]
    target.check_filter(destination, found=owned)
    if not owned:
        say("Nobody owns a lane.")
    rows = [(name, str(relay_id or "nobody"), _format_ranges(numbers)) for name, relay_id, numbers in owned]
    documents = to_lane_documents(registry, names)
    text = draw_table(_COLUMNS, rows) if rows else ""
    show_rows("lanes", documents, text=text, output=output)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers: `0-3, 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in ranges)
