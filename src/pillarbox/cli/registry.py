"""`pillarbox relays | partitions`: who delivers, and who owns which lanes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from pillarbox.cli.asking import asked
from pillarbox.cli.lines import age
from pillarbox.cli.output import OutputFormat, output_option, say, show_rows, table
from pillarbox.cli.target import Target, target_options
from pillarbox.message import PARTITIONS
from pillarbox.protocols import Registry
from pillarbox.relay.configured import relay_section

__all__ = ["partitions", "relays"]


@click.command(epilog="\b\nExample:\n  pillarbox relays\n")
@target_options
@output_option
def relays(target: Target, output: OutputFormat) -> None:
    """List the relays that are alive, what they serve and what they can reach."""
    registry = asked(target, lambda store: store.registry(lease=_lease(target)))
    if not registry.relays:
        say("No relay is alive: messages wait. Start one with `pillarbox relay`.")
    rows = [
        (
            str(one.relay_id), one.service, one.host, str(one.pid), one.version, ", ".join(one.destinations),
            ", ".join(sorted(set(one.destinations) - set(one.reachable))) or "none",
            str(_lanes(registry, one.relay_id)), age(one.started_at, registry.now),
        )
        for one in registry.relays
    ]  # fmt: skip
    headings = ("relay", "service", "host", "pid", "version", "serves", "cannot reach", "lanes", "up for")
    documents = [
        {name: getattr(one, name) for name in one.__struct_fields__} | {"lanes": _lanes(registry, one.relay_id)}
        for one in registry.relays
    ]
    show_rows("relays", documents, text=table(headings, rows) if rows else "", output=output)


@click.command(epilog="\b\nExample:\n  pillarbox partitions --destination billing\n")
@click.option("--destination", metavar="NAME", envvar="PILLARBOX_DESTINATION", show_envvar=True,
              help="Only of this destination.")  # fmt: skip
@target_options
@output_option
def partitions(target: Target, destination: str | None, output: OutputFormat) -> None:
    """Show which relay owns which lanes of each destination, and which lanes nobody owns."""
    registry = asked(target, lambda store: store.registry(lease=_lease(target)))
    names = sorted({*registry.owners, *(name for one in registry.relays for name in one.destinations)})
    documents = [
        {"destination": name, "relay_id": owner, "partitions": lanes}
        for name in names
        if destination in (None, name)
        for owner, lanes in _owned(registry, name)
    ]
    if not documents:
        say("Nobody owns a lane.")
    rows = [
        (str(one["destination"]), str(one["relay_id"] or "nobody"), _ranges(one["partitions"]))  # type: ignore[arg-type]
        for one in documents
    ]
    text = table(("destination", "relay", "partitions"), rows) if rows else ""
    show_rows("partitions", documents, text=text, output=output)


def _owned(registry: Registry, destination: str) -> list[tuple[object, list[int]]]:
    owners = registry.owners.get(destination, {})
    by_relay: dict[object, list[int]] = {}
    for partition in range(PARTITIONS):
        by_relay.setdefault(owners.get(partition), []).append(partition)
    return sorted(by_relay.items(), key=lambda one: str(one[0] or "~"))


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _lanes(registry: Registry, relay_id: object) -> int:
    return sum(owner == relay_id for owners in registry.owners.values() for owner in owners.values())


def _lease(target: Target) -> timedelta:
    return relay_section(target.config).settings.lease
