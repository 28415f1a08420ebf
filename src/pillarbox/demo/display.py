"""What the audience sees while it runs: a live table on a terminal where rich is installed, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from pillarbox.demo.script import Progress

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Display", "display"]

_EVERY: Final = 2.0
_BAR: Final = 40


class Display(Protocol):
    """Shows how far it is, and what was just done."""

    def show(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...


@contextmanager
def display(title: str, *, say: Callable[[str], None]) -> Iterator[Display]:
    """On stderr: stdout is for the verdict. `say` prints one line there."""
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
    """A line every other second, and one for the rare events."""

    def __init__(self, title: str, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._next = 0.0
        say(title)

    def show(self, progress: Progress) -> None:
        if progress.seconds >= self._next:
            self._next = progress.seconds + _EVERY
            self._say(line(progress))

    def note(self, text: str) -> None:
        if not text.startswith("relay"):
            self._say(f"        {text}")


class TableDisplay:
    """A table that changes in place, with the last event below."""

    def __init__(self, title: str, *, update: Callable[[Table], None]) -> None:
        self._title = title
        self._update = update
        self._note = ""

    def show(self, progress: Progress) -> None:
        self._update(self._table(progress))

    def note(self, text: str) -> None:
        self._note = text

    def _table(self, progress: Progress) -> Table:
        from rich.table import Table

        table = Table(title=self._title, caption=self._note, show_header=False, min_width=70)
        for name, text in cells(progress):
            style = "red" if text.startswith("DOWN") else ""
            table.add_row(name, text, style=style)
        return table


def line(progress: Progress) -> str:
    """All of it in one line."""
    return (
        f"{progress.seconds:5.1f} s  committed {progress.committed}, delivered {progress.delivered}, "
        f"received {progress.received}, in flight {progress.sending}, waiting {progress.pending}, "
        f"failed {progress.failed}, relays killed {progress.kills}, alive {len(progress.relays)}, "
        f"consumer {'up' if progress.consumer_is_up else 'DOWN'}"
    )


def cells(progress: Progress) -> Iterator[tuple[str, str]]:
    """The rows of the table."""
    yield "time", f"{progress.seconds:.1f} s"
    yield "orders committed", f"{progress.committed:>7,}  {_bar(progress.committed, progress.orders)}"
    yield "rolled back", f"{progress.rolled_back:>7,}"
    yield "delivered", f"{progress.delivered:>7,}  {_bar(progress.delivered, progress.orders)}"
    yield "received", f"{progress.received:>7,}  {_bar(progress.received, progress.orders)}"
    yield "in flight", f"{progress.sending:>7,}"
    yield "waiting", f"{progress.pending:>7,}"
    yield "failed", f"{progress.failed:>7,}"
    yield "relays alive", f"{len(progress.relays):>7,}"
    yield "relays killed", f"{progress.kills:>7,}"
    yield "consumer", "up" if progress.consumer_is_up else "DOWN"


def _bar(part: int, whole: int) -> str:
    full = min(_BAR, part * _BAR // max(1, whole))
    return "█" * full + "░" * (_BAR - full)
