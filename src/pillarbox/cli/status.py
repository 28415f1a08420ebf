"""`pillarbox status`: one screen that says how things are; `--watch` keeps it on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import click
import msgspec

from pillarbox.alerts import alerts_of
from pillarbox.cli.alerting import thresholds_of
from pillarbox.cli.asking import asked
from pillarbox.cli.durations import as_duration
from pillarbox.cli.output import OutputFormat, output_option, show
from pillarbox.cli.screen import Rates, alerts_text, screen
from pillarbox.cli.target import Target, target_options
from pillarbox.config import Config
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.monitor import Monitor, Status
from pillarbox.protocols import Store
from pillarbox.relay.configured import configured_destinations, relay_section
from pillarbox.stores.opening import open_store

__all__ = ["monitor_of", "served_by", "status"]

_EPILOG = """\b
Example:
  pillarbox status --watch
"""


@click.command("status", epilog=_EPILOG)
@target_options
@click.option("--watch", is_flag=True, envvar="PILLARBOX_WATCH", show_envvar=True, help="Go on until interrupted.")
@click.option("--interval", callback=as_duration, default="2s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_INTERVAL", show_envvar=True, help="With --watch: how often.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", envvar="PILLARBOX_COUNT", show_envvar=True,
              help="With --watch: stop after so many looks.")  # fmt: skip
@output_option
def status(target: Target, watch: bool, interval: timedelta, count: int | None, output: OutputFormat) -> None:
    """Show what waits, what failed, how fast it goes, who delivers, and what needs a person."""
    if watch:
        asyncio.run(_watched(target, every=interval.total_seconds(), count=count, output=output))
        return
    served = served_by(target.config)
    found = asked(target, lambda store: monitor_of(store, target.config).status(served=served))
    _show(found, target, output, rates=Rates())


def monitor_of(store: Store, config: Config) -> Monitor:
    """A monitor that counts leases as the relays do."""
    return Monitor(store, lease=relay_section(config).settings.lease)


def served_by(config: Config) -> list[str]:
    """The destinations that are configured, if any are."""
    try:
        return list(configured_destinations(config))
    except ConfigError:
        return []


def _show(found: Status, target: Target, output: OutputFormat, *, rates: Rates) -> None:
    thresholds = thresholds_of(target.config)
    alerts = alerts_of(found, thresholds)
    document = {**msgspec.to_builtins(found, builtin_types=(timedelta,)), "alerts": alerts}
    text = screen(found, rates=rates) + "\n\n" + alerts_text(alerts)
    show(_plain(document), text=text, output=output)


def _plain(value: Any) -> Any:
    """Durations as seconds: what programs compute with."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if not isinstance(value, msgspec.Struct) else _plain(msgspec.to_builtins(value))


async def _watched(target: Target, *, every: float, count: int | None, output: OutputFormat) -> None:
    """A store that goes away is said to be, and asked again: a screen that ends when things go wrong is of no use."""
    store = open_store(target.url, names=target.names, asks_only=True)
    await store.open()
    rates, served = Rates(), served_by(target.config)
    draw = _drawing(output)
    try:
        for _ in range(count) if count is not None else _endless():
            try:
                found = await monitor_of(store, target.config).status(served=served)
            except StoreUnavailable as error:
                draw(f"{error}", None, target, rates)
            else:
                rates.add(found)
                draw(None, found, target, rates)
            await asyncio.sleep(every)
    finally:
        await store.close()


def _endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _drawing(output: OutputFormat) -> Callable[[str | None, Status | None, Target, Rates], None]:
    def draw(trouble: str | None, found: Status | None, target: Target, rates: Rates) -> None:
        if output == "text":
            click.clear()
        if found is not None:
            _show(found, target, "jsonl" if output == "json" else output, rates=rates)
        else:
            click.echo(trouble, err=True)

    return draw
