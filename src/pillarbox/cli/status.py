"""`pillarbox status`: one screen with the state of every destination and relay; `--watch` repeats it."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, format_table, output_option, say, shorten, show, to_line
from pillarbox.cli._times import parse_wait
from pillarbox.cli.check import format_alerts, read_thresholds
from pillarbox.config import Config
from pillarbox.contracts.store import MonitorStore
from pillarbox.durations import format_duration
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.message import PARTITIONS
from pillarbox.operations.alerts import find_alerts
from pillarbox.operations.monitor import NOT_GIVEN_UP, DestinationStatus, Monitor, Status
from pillarbox.relay.configuration import read_destinations, read_relay_section
from pillarbox.stores.factory import open_store

__all__ = ["status"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARKLINE_LENGTH: Final = 30
_EPILOG = """\b
Example:
  pillarbox status --watch
"""


@click.command("status", epilog=_EPILOG)
@target_options
@click.option("--watch", is_flag=True, envvar="PILLARBOX_WATCH", show_envvar=True, help="Go on until interrupted.")
@click.option("--interval", callback=parse_wait, default="2s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_INTERVAL", show_envvar=True, help="With --watch: how often.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", envvar="PILLARBOX_COUNT", show_envvar=True,
              help="With --watch: stop after so many looks.")  # fmt: skip
@output_option
def status(target: Target, watch: bool, interval: timedelta, count: int | None, output: OutputFormat) -> None:
    """Show what waits, what failed, how fast it goes, who delivers, and what needs a person."""
    if watch:
        asyncio.run(_watch(target, every=interval.total_seconds(), count=count, output=output))
        return
    served = _list_served(target.config)
    found = target.run(lambda store: _monitor(store, target.config).status(served=served))
    _show(found, target, output, backlogs=_Backlogs())


async def _watch(target: Target, *, every: float, count: int | None, output: OutputFormat) -> None:
    """Show the status again and again. A store that goes away is reported and asked again: the screen must not end."""
    store = open_store(target.url, names=target.names, asks_only=True)
    await store.open()
    backlogs, served = _Backlogs(), _list_served(target.config)
    try:
        for _ in itertools.count() if count is None else range(count):
            try:
                found: Status | StoreUnavailable = await _monitor(store, target.config).status(served=served)
            except StoreUnavailable as error:
                found = error
            if output == "text":
                click.clear()
            if isinstance(found, Status):
                backlogs.add(found)
                _show(found, target, "jsonl" if output == "json" else output, backlogs=backlogs)
            else:
                say(str(found))
            await asyncio.sleep(every)
    finally:
        await store.close()


def _monitor(store: MonitorStore, config: Config) -> Monitor:
    # With another lease than the relays have, dead ones would count as alive.
    return Monitor(store, lease=read_relay_section(config).settings.lease)


def _list_served(config: Config) -> list[str]:
    """List the configured destinations, to be shown even before their first message; none if there are none."""
    try:
        return list(read_destinations(config))
    except ConfigError:
        return []


def _show(found: Status, target: Target, output: OutputFormat, *, backlogs: _Backlogs) -> None:
    alerts = find_alerts(found, read_thresholds(target.config))
    document = {**msgspec.to_builtins(found, builtin_types=(timedelta,)), "alerts": alerts}
    text = f"{_format_screen(found, backlogs)}\n\n{format_alerts(alerts)}"
    show(_with_seconds(document), text=text, output=output)


def _with_seconds(value: Any) -> Any:
    """Convert a document's durations to seconds: numbers that programs can compute with."""
    match value:
        case timedelta():
            return value.total_seconds()
        case dict():
            return {name: _with_seconds(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_with_seconds(inner) for inner in value]
        case msgspec.Struct():
            return _with_seconds(msgspec.to_builtins(value))
    return value


class _Backlogs:
    """Backlogs of each destination at the latest looks."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_SPARKLINE_LENGTH))

    def add(self, status: Status) -> None:
        for one in status.destinations:
            self._counts[one.name].append(one.due + one.sending)

    def sparkline(self, name: str) -> str:
        """Draw one destination's backlogs; nothing before the second look."""
        return _draw_sparkline(self._counts[name]) if len(self._counts[name]) > 1 else ""


def _draw_sparkline(numbers: Sequence[int]) -> str:
    """Draw numbers in eight heights, from nothing to the largest of them."""
    largest = max(numbers, default=0)
    return "".join(_BARS[-(-number * (len(_BARS) - 1) // largest) if largest else 0] for number in numbers)


def _format_screen(status: Status, backlogs: _Backlogs) -> str:
    parts = [f"{status.at:%Y-%m-%d %H:%M:%S} UTC by the store's clock"]
    rows = [_format_row(one, status, backlogs) for one in status.destinations]
    headings = ("destination", "due", "later", "sending", "failed", "delivered", "rate", "oldest", "p50", "p99",
                "retries", "lanes", "relays", "")  # fmt: skip
    parts.append(format_table(headings, rows) if rows else "No message was ever written here.")
    if status.sampled:
        parts.append("Latency and retries are of the latest deliveries alone: there were more in the window.")
    if status.waiting:
        parts.append(_format_waiting(status))
    if status.inboxes:
        parts.append(_format_inboxes(status))
    parts.append(_format_relays(status))
    return "\n\n".join(parts)


def _format_row(one: DestinationStatus, status: Status, backlogs: _Backlogs) -> tuple[str, ...]:
    latency = one.latency
    counts = [
        f"{getattr(one, name):,}" + ("+" if name in one.more else "")
        for name in ("due", "later", "sending", "failed", "delivered")
    ]
    return (
        one.name,
        *counts,
        f"{one.rate:,.0f}/s" if one.rate >= 10 else f"{one.rate:.1f}/s",
        format_age(one.oldest_due_at, status.at),
        "" if latency is None else _format_latency(latency.p50),
        "" if latency is None else _format_latency(latency.p99),
        f"{one.retry_rate:.0%}" if latency is not None or one.attempts_failed else "",
        f"{one.lanes}/{PARTITIONS}",
        _format_served(one),
        backlogs.sparkline(one.name),
    )


def _format_latency(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else format_duration(timedelta(seconds=round(seconds)))


def _format_served(one: DestinationStatus) -> str:
    if one.pause is not None:
        return f"paused by {shorten(one.pause.by, 30)}"
    if not one.is_served:
        return "nobody"
    return str(one.relays) if one.reachable == one.relays else f"{one.relays}, {one.reachable} reach it"


def _format_waiting(status: Status) -> str:
    rows = [
        (
            one.destination, shorten(one.topic, 30), f"{one.count:,}{'+' if one.more else ''}", str(one.tries),
            format_age(one.since, status.at), shorten(one.error, 80),
        )
        for one in status.waiting
    ]  # fmt: skip
    heading = f"Tried and {NOT_GIVEN_UP}:"
    return f"{heading}\n{format_table(('destination', 'topic', 'messages', 'tries', 'oldest', 'last error'), rows)}"


def _format_inboxes(status: Status) -> str:
    rows = [
        (one.consumer, f"{one.failed:,}{'+' if one.more else ''}", format_age(one.oldest_at, status.at))
        for one in status.inboxes
    ]
    return format_table(("consumer", "failed", "oldest"), rows)


def _format_relays(status: Status) -> str:
    if not status.relays:
        return "No relay is alive."
    alive = [f"{to_line(one.service)} on {to_line(one.host)} ({one.pid})" for one in status.relays]
    return f"{len(alive)} relays alive: " + ", ".join(alive) if len(alive) > 1 else f"1 relay alive: {alive[0]}"
