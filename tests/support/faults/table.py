"""The table of the docs, made of what a test run found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.support.faults.broker import Fault
from tests.support.faults.runner import Verdict

__all__ = ["COMMAND", "PAGE", "Results", "format_page"]

COMMAND: Final = "make fault-table"
PAGE: Final = Path(__file__).parents[3] / "docs" / "transports" / "faults.md"

_INTRODUCTION: Final = """# Brokers and faults

Made by a test run, `{command}`, not by hand. For each row a real relay over a SQLite store delivers {sent} messages of
20 keys to a broker, through a proxy that breaks the connection as the row says, and a client that knows nothing of
Pillarbox reads what arrived. Relay, proxy and broker run on one machine.

- *cut before the answer*: the connection is reset, twice, with messages under way that the broker never saw.
- *cut after the answer*: the broker took the messages and said so, but its answers are dropped and the connection is
  reset; twice.
- *restart*: the broker is ended with messages under way, and started again.
- *hang*: not a byte moves either way until a send has run into its timeout.
- *unroutable* (with `missing_topology = "reject"`), *too large*: three of the messages are; they are meant to fail, and
  nothing else is.
- *refused*: the broker says no until a send has come back with it.

**lost** is what neither arrived nor is kept as failed, **order** what arrived first behind a later message of its key,
**repeats** what arrived more than once, **attempts** what was spent by messages that were delivered in the end.

| Broker | Fault | lost | order | repeats | attempts | failed |
|---|---|---|---|---|---|---|
"""


class Results(msgspec.Struct):
    """What was found, by broker and fault, and what was not run_fault, and why."""

    found: dict[tuple[str, Fault], Verdict] = {}
    exempt: dict[tuple[str, Fault], str] = {}


def format_page(results: Results) -> str:
    """The page. Repeats and attempts differ from run to run."""
    sent = max((verdict.sent for verdict in results.found.values()), default=0)
    rows = sorted({**results.found, **results.exempt}, key=_sort_key(results))
    notes = list(dict.fromkeys(results.exempt.values()))
    lines = [_format_row(results, broker, fault, notes) for broker, fault in rows]
    footnotes = "".join(f"\n{number}. {note}" for number, note in enumerate(notes, 1))
    return (
        _INTRODUCTION.format(command=COMMAND, sent=sent) + "\n".join(lines) + "\n" + (f"{footnotes}\n" if notes else "")
    )


def _sort_key(results: Results) -> Callable[[tuple[str, Fault]], tuple[int, int]]:
    brokers = list(dict.fromkeys(broker for broker, _ in (*results.found, *results.exempt)))
    faults = list(Fault)
    return lambda row: (brokers.index(row[0]), faults.index(row[1]))


def _format_row(results: Results, broker: str, fault: Fault, notes: Sequence[str]) -> str:
    cells = _format_cells(results.found, broker, fault)
    if cells is None:
        cells = [f"does not apply ({notes.index(results.exempt[broker, fault]) + 1})", "", "", "", ""]
    return f"| {broker} | {fault.value} | {' | '.join(cells)} |"


def _format_cells(found: Mapping[tuple[str, Fault], Verdict], broker: str, fault: Fault) -> list[str] | None:
    verdict = found.get((broker, fault))
    if verdict is None:
        return None
    counts = (verdict.lost, verdict.out_of_order, verdict.duplicates, verdict.attempts, verdict.failed)
    return [str(count) for count in counts]
