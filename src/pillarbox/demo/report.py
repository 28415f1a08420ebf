"""The progress of a run while it lasts, and its result in plain words."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from pillarbox.demo.result import Result
from pillarbox.demo.runner import DemoResult, Setup
from pillarbox.demo.scenario import Progress
from pillarbox.stores.urls import StoreUrl

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Display", "LinesDisplay", "TableDisplay", "display", "format_report"]


_FAILED: Final = "select id, subject, attempts, last_error from {messages} where state = 'failed'"
_REFUSED: Final = "select message_id, order_id, error from refused"


def format_report(outcome: DemoResult, setup: Setup, *, kept: bool) -> str:
    """Return the table of counts, the failed messages and the conclusion."""
    parts = [_format_table(outcome.result), *_format_failures(outcome, setup, kept=kept)]
    if kept:
        parts.append(_format_kept(setup))
    return "\n\n".join([*parts, format_conclusion(outcome)])


def list_rows(result: Result) -> Iterator[tuple[str, int, str]]:
    """Yield the name of a count, the count, and its meaning."""
    yield "committed", result.committed, "orders, each in one transaction with its message"
    yield "rolled back", result.rolled_back, "orders, after their message was published"
    yield "delivered", result.delivered, "messages, as the relays recorded it"
    yield "effects applied", result.effects, "orders in the consumer's database"
    yield "lost", result.lost, "committed, and neither applied nor kept as failed"
    yield "ghosts", result.ghosts, "applied although not committed, or applied once more"
    yield "out of order", result.out_of_order, "applied after a later order of the same customer"
    yield "received", result.received, "messages that the consumer processed"
    yield "received twice", result.duplicates, "of them were repeats"
    yield "absorbed by the inbox", result.absorbed, "repeats that had no effect"
    yield "relays killed", result.kills, "with SIGKILL, and started again"
    yield "in mid-delivery", result.kills_while_delivering, "of these kills had deliveries since the one before"
    yield "outages", result.outages, "of the consumer, killed with SIGKILL too"
    yield "failed", result.failed, "refused for good, kept, and blocking nothing: the poison message"


def format_conclusion(outcome: DemoResult) -> str:
    """Return the last line."""
    result = outcome.result
    if result.holds:
        return "Nothing lost, nothing invented, nothing out of order."
    counts = f"{result.lost} lost, {result.ghosts} ghosts, {result.out_of_order} out of order, {result.failed} failed"
    if outcome.is_complete:
        return f"The promise is broken: {counts}."
    return f"Time ran out with messages still on their way, which count as lost: {counts}."


def _format_table(result: Result) -> str:
    return "\n".join(f"{what:<21} {count:>7}  {meaning}" for what, count, meaning in list_rows(result))


def _format_failures(outcome: DemoResult, setup: Setup, *, kept: bool) -> Iterator[str]:
    failures = [*outcome.failed, *outcome.refused]
    if not failures:
        return
    lines = [f"Failed: {one.order_id} of {one.customer}: {one.error}" for one in failures]
    hint = "To see it:" if kept else "It was removed with the demo's files. To see it, run with --keep, and then:"
    commands = [_store_command(setup)] * bool(outcome.failed) + [_consumer_command(setup)] * bool(outcome.refused)
    yield "\n".join([*lines, hint, *(f"  {command}" for command in commands)])


def _store_command(setup: Setup) -> str:
    store = setup.store
    query = _FAILED.format(messages=store.names.table("messages").replace('"', ""))
    if store.url.scheme == "sqlite":
        return f"sqlite3 {shlex.quote(store.url.path)} {shlex.quote(query)}"
    if store.url.scheme == "mysql":
        return _mysql_command(store.url, query)
    return f"psql {shlex.quote(store.url.redacted)} -c {shlex.quote(query)}"


def _mysql_command(url: StoreUrl, query: str) -> str:
    parts = urlsplit(url.redacted)
    password = " -p" if parts.password else ""
    host = f"-h {parts.hostname or '127.0.0.1'} -P {parts.port or 3306}"
    return f"mysql {host} -u {shlex.quote(parts.username or '')}{password} -e {shlex.quote(query)}"


def _consumer_command(setup: Setup) -> str:
    return f"sqlite3 {shlex.quote(str(setup.consumer_file))} {shlex.quote(_REFUSED)}"


def _format_kept(setup: Setup) -> str:
    schema = setup.store.names.schema
    schema_note = "" if schema is None else f", schema {schema}"
    return "\n".join(
        (
            f"Kept: the order service's store {setup.store.url}{schema_note},",
            f"      the consumer's database {setup.consumer_file}, and the logs of all processes beside it.",
        )
    )


_LINE_SECONDS: Final = 2.0
_BAR_WIDTH: Final = 40


class Display(Protocol):
    """Shows the progress of a run, and its events."""

    def show(self, progress: Progress, *, is_last: bool = False) -> None: ...

    def note(self, text: str) -> None: ...


@contextmanager
def display(title: str, *, say: Callable[[str], None]) -> Iterator[Display]:
    """Yield a display on stderr: stdout is for the result. `say` prints one line there."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError:
        yield LinesDisplay(title, say=say)
        return
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield LinesDisplay(title, say=say)
        return
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        yield TableDisplay(title, update=live.update)


class LinesDisplay:
    """Prints a line every two seconds, and one for each rare event."""

    def __init__(self, title: str, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._next_at = 0.0
        say(title)

    def show(self, progress: Progress, *, is_last: bool = False) -> None:
        if is_last or progress.seconds >= self._next_at:
            self._next_at = progress.seconds + _LINE_SECONDS
            self._say(format_progress(progress))

    def note(self, text: str) -> None:
        if not text.startswith("relay"):
            self._say(f"        {text}")


class TableDisplay:
    """Shows a table that changes in place, with the last event below."""

    def __init__(self, title: str, *, update: Callable[[Table], None]) -> None:
        self._title = title
        self._update = update
        self._note = ""

    def show(self, progress: Progress, *, is_last: bool = False) -> None:  # noqa: ARG002 - it shows each of them
        self._update(self._table(progress))

    def note(self, text: str) -> None:
        self._note = text

    def _table(self, progress: Progress) -> Table:
        from rich.table import Table

        table = Table(title=self._title, caption=self._note, show_header=False, min_width=70)
        for name, text in list_cells(progress):
            style = "red" if text.startswith("DOWN") else ""
            table.add_row(name, text, style=style)
        return table


def format_progress(progress: Progress) -> str:
    """Return the progress in one line."""
    return (
        f"{progress.seconds:5.1f} s  committed {progress.committed}, delivered {progress.delivered}, "
        f"received {progress.received}, in flight {progress.sending}, waiting {progress.pending}, "
        f"failed {progress.failed}, relays killed {progress.kills}, alive {len(progress.relays)}, "
        f"consumer {'up' if progress.consumer_is_up else 'DOWN'}"
    )


def list_cells(progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    yield "time", f"{progress.seconds:.1f} s"
    yield "orders committed", f"{progress.committed:>7,}  {_format_bar(progress.committed, progress.orders)}"
    yield "rolled back", f"{progress.rolled_back:>7,}"
    yield "delivered", f"{progress.delivered:>7,}  {_format_bar(progress.delivered, progress.orders)}"
    yield "received", f"{progress.received:>7,}  {_format_bar(progress.received, progress.orders)}"
    yield "in flight", f"{progress.sending:>7,}"
    yield "waiting", f"{progress.pending:>7,}"
    yield "failed", f"{progress.failed:>7,}"
    yield "relays alive", f"{len(progress.relays):>7,}"
    yield "relays killed", f"{progress.kills:>7,}"
    yield "consumer", "up" if progress.consumer_is_up else "DOWN"


def _format_bar(part: int, whole: int) -> str:
    full = min(_BAR_WIDTH, part * _BAR_WIDTH // max(1, whole))
    return "█" * full + "░" * (_BAR_WIDTH - full)
