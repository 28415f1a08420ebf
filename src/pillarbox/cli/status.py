"""`pillarbox status`: one screen with the state of every destination and relay; `--watch` repeats it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Self

import click

from pillarbox.cli._options import Target, Targets, targets_options
from pillarbox.cli._output import OutputFormat, echo_control, echo_painted, output_option, say, show, show_rows
from pillarbox.cli._screen import Backlogs, Line, paint_status, paint_stores
from pillarbox.cli._table import find_width, is_wide, to_line, wide_option, wrap
from pillarbox.cli._times import parse_wait
from pillarbox.config import Config
from pillarbox.contracts.finding import Severity
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.operations.alerts import find_alerts
from pillarbox.operations.configuration import build_monitor, read_thresholds
from pillarbox.operations.documents import to_status_document
from pillarbox.operations.monitor import Status
from pillarbox.relay.configuration import read_destinations
from pillarbox.stores.factory import open_store

__all__ = ["status"]

_ENTER: Final = "\x1b[?1049h"
_LEAVE: Final = "\x1b[?1049l"
"""Sequences for the alternate screen, which leaves what was on the terminal before as it was."""
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
@wide_option
@output_option
def status(targets: Targets, watch: bool, interval: timedelta, count: int | None, output: OutputFormat) -> None:
    """Show what waits, what failed, how fast it goes, who delivers, and what needs attention.

    Of several stores it shows a line each; --store NAME chooses one.
    """
    target = targets.single
    if target is None:
        code, looks = 0, (itertools.count() if count is None else range(count)) if watch else range(1)
        with _Screen(is_live=watch and output == "text") as screen:
            for look in looks:
                if look:
                    time.sleep(interval.total_seconds())
                code = _show_stores(targets, screen, output=output, watch=watch)
        raise click.exceptions.Exit(code)
    if watch:
        with _Screen(is_live=output == "text") as screen:
            asyncio.run(_watch(targets, target, screen, every=interval.total_seconds(), count=count, output=output))
        return
    served = _list_served(target.config)
    found = target.run(lambda store: build_monitor(store, target.config).status(served=served), reads_only=True)
    _show(found, targets, _Screen(is_live=False), output, backlogs=Backlogs())


class _Screen:
    """The terminal that a status is shown on. A live one is redrawn, and the last look stays when it ends."""

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live and sys.stdout.isatty()
        self._lines: Sequence[Line] = ()

    def __enter__(self) -> Self:
        if self._is_live:
            echo_control(_ENTER)
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_live:
            echo_control(_LEAVE)
            echo_painted(self._lines)

    @property
    def height(self) -> int | None:
        """Lines that one look may have; None if they are not redrawn, or with `--wide`."""
        return shutil.get_terminal_size().lines - 1 if self._is_live and not is_wide() else None

    def show(self, lines: Sequence[Line]) -> None:
        """Print the lines, on a live screen in place of the last ones."""
        self._lines = lines
        if self._is_live:
            click.clear()
        echo_painted(lines)


def _show_stores(targets: Targets, screen: _Screen, *, output: OutputFormat, watch: bool) -> int:
    """Show a line for each store; return the exit code of the worst that cannot be asked, 0 if all answer."""
    thresholds, served = read_thresholds(targets.config), _list_served(targets.config)
    answers = targets.ask(lambda _, store: build_monitor(store, targets.config).status(served=served), reads_only=True)
    alerts = {one.name: find_alerts(one.value, thresholds, store=one.name) for one in answers if one.value is not None}
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
        screen.show(paint_stores(answers, alerts, width=find_width(), height=screen.height))
    return max((one.exit_code for one in answers), default=0)


async def _watch(
    targets: Targets, target: Target, screen: _Screen, *, every: float, count: int | None, output: OutputFormat
) -> None:
    """Show the status again and again. A store that goes away is reported and asked again: the screen must not end."""
    store = open_store(target.url, names=target.names, asks_only=True, reads_only=True)
    await store.open()
    backlogs, served = Backlogs(), _list_served(target.config)
    try:
        for _ in itertools.count() if count is None else range(count):
            try:
                found: Status | StoreUnavailable = await build_monitor(store, target.config).status(served=served)
            except StoreUnavailable as error:
                found = error
            if isinstance(found, Status):
                backlogs.add(found)
                _show(found, targets, screen, "jsonl" if output == "json" else output, backlogs=backlogs)
            elif output == "text":
                screen.show([(line, Severity.CRITICAL) for line in wrap(to_line(str(found)), find_width())])
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


def _show(found: Status, targets: Targets, screen: _Screen, output: OutputFormat, *, backlogs: Backlogs) -> None:
    alerts = find_alerts(found, read_thresholds(targets.config), store=targets.chosen)
    if output == "text":
        screen.show(paint_status(found, alerts, backlogs, width=find_width(), height=screen.height))
    else:
        show(to_status_document(found, alerts), text="", output=output)
