"""`pillarbox status`: one screen with the state of every destination and relay; `--watch` repeats it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import click

from pillarbox.cli._options import Target, Targets, targets_options
from pillarbox.cli._output import (
    OutputFormat,
    align_columns,
    echo_painted,
    format_age,
    output_option,
    say,
    shorten,
    show,
    show_rows,
    to_line,
)
from pillarbox.cli._times import parse_wait
from pillarbox.cli.check import paint_alerts
from pillarbox.config import Config
from pillarbox.contracts.finding import Severity
from pillarbox.durations import format_duration, format_latency
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.message import PARTITIONS
from pillarbox.operations.alerts import Alert, find_alerts
from pillarbox.operations.configuration import build_monitor, read_thresholds
from pillarbox.operations.documents import to_status_document
from pillarbox.operations.monitor import NOT_GIVEN_UP, DestinationStatus, Status
from pillarbox.operations.stores import StoreAnswer
from pillarbox.relay.configuration import read_destinations
from pillarbox.stores.factory import open_store

__all__ = ["status"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARKLINE_LENGTH: Final = 30
_EPILOG = """\b
Example:
  pillarbox status --watch
"""


@click.command("status", epilog=_EPILOG)
@targets_options
@click.option("--watch", is_flag=True, envvar="PILLARBOX_WATCH", show_envvar=True, help="Go on until interrupted.")
@click.option("--interval", callback=parse_wait, default="2s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_INTERVAL", show_envvar=True, help="With --watch: how often.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", envvar="PILLARBOX_COUNT", show_envvar=True,
              help="With --watch: stop after so many looks.")  # fmt: skip
@output_option
def status(targets: Targets, watch: bool, interval: timedelta, count: int | None, output: OutputFormat) -> None:
    """Show what waits, what failed, how fast it goes, who delivers, and what needs a person.

    Of several stores it shows a line each; --store NAME chooses one.
    """
    target = targets.single
    if target is None:
        code, looks = 0, (itertools.count() if count is None else range(count)) if watch else range(1)
        for look in looks:
            if look:
                time.sleep(interval.total_seconds())
            code = _show_stores(targets, output=output, watch=watch)
        raise click.exceptions.Exit(code)
    if watch:
        asyncio.run(_watch(target, every=interval.total_seconds(), count=count, output=output))
        return
    served = _list_served(target.config)
    found = target.run(lambda store: build_monitor(store, target.config).status(served=served), reads_only=True)
    _show(found, target, output, backlogs=_Backlogs())


def _show_stores(targets: Targets, *, output: OutputFormat, watch: bool) -> int:
    """Show a line for each store; return the exit code of the worst that cannot be asked, 0 if all answer."""
    thresholds, served = read_thresholds(targets.config), _list_served(targets.config)
    answers = targets.ask(lambda _, store: build_monitor(store, targets.config).status(served=served), reads_only=True)
    alerts = {one.name: find_alerts(one.value, thresholds) for one in answers if one.value is not None}
    if output != "text":
        rows = [
            {"store": one.name, "error": one.error}
            if one.value is None
            else {"store": one.name, **to_status_document(one.value, alerts[one.name])}
            for one in answers
        ]
        if watch and output == "json":
            output = "jsonl"
        show_rows("stores", rows, text="", output=output)
    else:
        if watch:
            click.clear()
        echo_painted(_paint_stores(answers, alerts))
    return max((one.exit_code for one in answers), default=0)


def _paint_stores(answers: Sequence[StoreAnswer[Status]], alerts: Mapping[str, Sequence[Alert]]) -> list[_Line]:
    """Write a line for each store in the colour of its worst alert, then why some cannot be asked."""
    headings = ("store", "due", "later", "sending", "failed", "oldest", "rate", "relays", "alerts")
    rows = [_summarize(one.name, one.value, alerts.get(one.name, ())) for one in answers if one.name]
    severities = [
        Severity.CRITICAL if one.value is None else (alerts[one.name][0].severity if alerts[one.name] else None)
        for one in answers
        if one.name
    ]
    lines: list[_Line] = list(zip(align_columns(headings, rows).split("\n"), [None, *severities], strict=True))
    failed = [one for one in answers if one.error is not None]
    if failed:
        lines += [("", None)]
        lines += [(f"{one.name or 'tenants'}: {to_line(one.error or '')}", Severity.CRITICAL) for one in failed]
    return lines


def _summarize(name: str, status: Status | None, alerts: Sequence[Alert]) -> tuple[str, ...]:
    if status is None:
        return shorten(name, _NAME_LENGTH), "?", "?", "?", "?", "?", "?", "?", "not asked"
    all_of = status.destinations
    oldest = max((status.oldest_age(one) for one in all_of), default=timedelta(0))
    return (
        shorten(name, _NAME_LENGTH),
        *(f"{sum(getattr(one, what) for one in all_of):,}" for what in ("due", "later", "sending", "failed")),
        format_duration(timedelta(seconds=round(oldest.total_seconds()))) if oldest else "",
        f"{sum(one.rate for one in all_of):,.1f}/s",
        str(len(status.relays)),
        f"{len(alerts)}: {to_line(alerts[0].what)}" if alerts else "",
    )


async def _watch(target: Target, *, every: float, count: int | None, output: OutputFormat) -> None:
    """Show the status again and again. A store that goes away is reported and asked again: the screen must not end."""
    store = open_store(target.url, names=target.names, asks_only=True, reads_only=True)
    await store.open()
    backlogs, served = _Backlogs(), _list_served(target.config)
    try:
        for _ in itertools.count() if count is None else range(count):
            try:
                found: Status | StoreUnavailable = await build_monitor(store, target.config).status(served=served)
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


def _list_served(config: Config) -> list[str]:
    """List the configured destinations, to be shown even before their first message; none if there are none."""
    try:
        return list(read_destinations(config))
    except ConfigError:
        return []


def _show(found: Status, target: Target, output: OutputFormat, *, backlogs: _Backlogs) -> None:
    alerts = find_alerts(found, read_thresholds(target.config))
    if output == "text":
        width = shutil.get_terminal_size().columns
        echo_painted([*_paint_screen(found, alerts, backlogs, width=width), ("", None), *paint_alerts(alerts)])
    else:
        show(to_status_document(found, alerts), text="", output=output)


class _Backlogs:
    """Backlogs of each destination at the latest looks."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_SPARKLINE_LENGTH))

    def add(self, status: Status) -> None:
        for one in status.destinations:
            self._counts[one.name].append(one.due + one.sending)

    def sparkline(self, name: str, *, length: int) -> str:
        """Draw one destination's latest backlogs; nothing before the second look."""
        counts = list(self._counts[name])[-length:] if length > 0 else []
        return _draw_sparkline(counts) if len(counts) > 1 else ""


def _draw_sparkline(numbers: Sequence[int]) -> str:
    """Draw numbers in eight heights, from nothing to the largest of them."""
    largest = max(numbers, default=0)
    return "".join(_BARS[-(-number * (len(_BARS) - 1) // largest) if largest else 0] for number in numbers)


_Line = tuple[str, Severity | None]
_NAME_LENGTH: Final = 24
"""Letters of a destination's name. With them the tables fit 80 columns."""


def _paint_screen(status: Status, alerts: Sequence[Alert], backlogs: _Backlogs, *, width: int) -> list[_Line]:
    """Write the screen as lines. A destination has the colour of its worst alert."""
    lines: list[_Line] = [(f"{status.at:%Y-%m-%d %H:%M:%S} UTC by the store's clock", None), ("", None)]
    if status.destinations:
        severities = {alert.destination: alert.severity for alert in reversed(alerts)}
        colours = [severities.get(one.name) for one in status.destinations]
        waiting = _align_waiting(status, backlogs, width=width)
        window = format_duration(status.window)
        delivered = align_columns(
            (f"in the last {window}", "delivered", "rate", "p50", "p99", "end to end", "retried"),
            [_format_delivered(one) for one in status.destinations],
        ).split("\n")
        for table in (waiting, delivered):
            lines += [*zip(table, [None, *colours], strict=True), ("", None)]
    else:
        lines += [("No message waits or has failed, and none was delivered lately.", None), ("", None)]
    if status.waiting:
        lines += [*((line, None) for line in _list_tried(status)), ("", None)]
    if status.inboxes:
        lines += [*((line, None) for line in _format_inboxes(status).split("\n")), ("", None)]
    return [*lines, (_format_relays(status), None)]


def _align_waiting(status: Status, backlogs: _Backlogs, *, width: int) -> list[str]:
    """Write what waits, and behind it, as far as there is room, how much that was at the latest looks."""
    headings = ("destination", "due", "later", "sending", "failed", "oldest", "lanes", "relays")
    rows = [_format_waiting(one, status) for one in status.destinations]
    lines = align_columns(headings, rows).split("\n")
    if (excess := max(len(line) for line in lines) - width) > 0:
        names = max(len(headings[0]), _NAME_LENGTH - excess)
        lines = align_columns(headings, [(shorten(name, names), *rest) for name, *rest in rows]).split("\n")
    room = max(len(line) for line in lines) + 2
    length = min(_SPARKLINE_LENGTH, width - room)
    drawn = ["", *(backlogs.sparkline(one.name, length=length) for one in status.destinations)]
    return [f"{line:{room}}{marks}" if marks else line for line, marks in zip(lines, drawn, strict=True)]


def _format_waiting(one: DestinationStatus, status: Status) -> tuple[str, ...]:
    counts = [
        f"{getattr(one, name):,}" + ("+" if name in one.more else "") for name in ("due", "later", "sending", "failed")
    ]
    age = format_age(one.oldest_due_at, status.at)
    return shorten(one.name, _NAME_LENGTH), *counts, age, f"{one.lanes}/{PARTITIONS}", _format_served(one)


def _format_delivered(one: DestinationStatus) -> tuple[str, ...]:
    latency, end_to_end = one.latency, one.end_to_end
    return (
        shorten(one.name, _NAME_LENGTH),
        f"{one.delivered:,}",
        f"{one.rate:,.0f}/s" if one.rate >= 10 else f"{one.rate:.1f}/s",
        "" if latency is None else format_latency(latency.p50),
        "" if latency is None else format_latency(latency.p99),
        "" if end_to_end is None else format_latency(end_to_end.average),
        f"{one.retry_rate:.0%}" if one.attempts else "",
    )


def _format_served(one: DestinationStatus) -> str:
    if one.pause is not None:
        return f"paused by {shorten(one.pause.by, 12)}"
    if one.handed_off_to is not None and not one.is_served:
        return one.handed_off_to
    if not one.is_served:
        return "nobody"
    return str(one.relays) if one.reachable == one.relays else f"{one.reachable} of {one.relays} reach it"


def _list_tried(status: Status) -> list[str]:
    """Write what was tried and is not given up: a line for the messages of a topic, and one for their last error."""
    rows = [
        (
            shorten(one.destination, _NAME_LENGTH), shorten(one.topic, _NAME_LENGTH),
            f"{one.count:,}{'+' if one.more else ''}", str(one.tries), format_age(one.since, status.at),
        )
        for one in status.waiting
    ]  # fmt: skip
    headings, *lines = align_columns(("destination", "topic", "messages", "tries", "oldest"), rows).split("\n")
    errors = [f"  {to_line(one.error)}" for one in status.waiting]
    heading, reason = NOT_GIVEN_UP.split(", ", 1)
    told = [text for line, error in zip(lines, errors, strict=True) for text in (line, error)]
    return [f"Tried and {heading},", f"{reason}:", headings, *told]


def _format_inboxes(status: Status) -> str:
    rows = [
        (one.consumer, f"{one.failed:,}{'+' if one.more else ''}", format_age(one.oldest_at, status.at))
        for one in status.inboxes
    ]
    return align_columns(("consumer", "failed", "oldest"), rows)


def _format_relays(status: Status) -> str:
    if not status.relays:
        return "No relay is alive."
    alive = [f"{to_line(one.service)} on {to_line(one.host)} ({one.pid})" for one in status.relays]
    return f"{len(alive)} relays alive: " + ", ".join(alive) if len(alive) > 1 else f"1 relay alive: {alive[0]}"
