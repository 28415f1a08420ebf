"""The table of the docs, made of what a test run found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.support.faults.broker import Fault
from tests.support.faults.partial import LEAST_RATIO, ROUNDS, WAITING, PartialVerdict
from tests.support.faults.runner import Verdict

__all__ = ["COMMAND", "PAGE", "PARTIAL_COUNT", "Results", "format_page"]

COMMAND: Final = "make fault-table"
PARTIAL_COUNT: Final = 200
"""Messages for each address of a partial outage."""
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


_PARTIAL: Final = """
## Partial outages

A part of a broker takes nothing, and the rest works. For each row the relay delivers {sent} messages to the address
that is blocked, and as many to another one, of 20 keys each. Each message has a single attempt: one that is spent is
one that failed. *Before the start*: the outage is there before the relay. Otherwise messages get through at first,
except for full queues and partitions without a leader.

**attempts** and **failed** are those of all messages. **recovers** is the time from the end of the outage until the
last message that had waited was delivered. **the other's rate** is that of the other address at full speed while
{waiting} messages wait for the blocked one, as a part of its rate alone: medians of {rounds} rounds of each, by turns
in the same run, from three seconds after the outage was noticed. A ratio below {least} is measured once more, and all
rounds count together. The ratio differs from run to run with whatever else the machine does. Messages that come in
for the blocked address meanwhile would cost more: none do. `{command}` ends with an error if something is lost,
failed or out of order, if an attempt is spent, or if a ratio is below {least}.

- *full queue, slow reader*: a queue for {room} messages with `reject-publish`, read twice a second, later 200 times.
- *a third of the keys refused*: they get 429 with `Retry-After: 1`; *the other* are the other keys.
- *one URL of two*: two destinations of one relay.
- *slow link*: {large} messages of 500 kB at 1.5 MB/s, timeouts of 2 or 3 seconds; **recovers** is the time for all.

| Broker | Outage | lost | order | repeats | attempts | failed | the other's rate | recovers |
|---|---|---|---|---|---|---|---|---|
"""


class Results(msgspec.Struct):
    """What was found, by broker and fault, and what was not run_fault, and why."""

    found: dict[tuple[str, Fault], Verdict] = {}
    exempt: dict[tuple[str, Fault], str] = {}
    partial: dict[tuple[str, str], PartialVerdict] = {}


def format_page(results: Results) -> str:
    """The page. Repeats and attempts differ from run to run."""
    sent = max((verdict.sent for verdict in results.found.values()), default=0)
    rows = sorted({**results.found, **results.exempt}, key=_sort_key(results))
    notes = list(dict.fromkeys(results.exempt.values()))
    lines = [_format_row(results, broker, fault, notes) for broker, fault in rows]
    footnotes = "".join(f"\n{number}. {note}" for number, note in enumerate(notes, 1))
    text = _INTRODUCTION.format(command=COMMAND, sent=sent) + "\n".join(lines) + "\n"
    return text + (f"{footnotes}\n" if notes else "") + _format_partial(results.partial)


def _format_partial(found: Mapping[tuple[str, str], PartialVerdict]) -> str:
    if not found:
        return ""
    introduction = _PARTIAL.format(
        command=COMMAND, sent=PARTIAL_COUNT, waiting=f"{WAITING:,}", rounds=ROUNDS, least=LEAST_RATIO, room=5, large=12
    )
    return introduction + "\n".join(_format_partial_row(*row, one) for row, one in found.items()) + "\n"


def _format_partial_row(broker: str, name: str, one: PartialVerdict) -> str:
    ratio = "–" if one.ratio is None else f"{one.ratio:.2f}"
    counts = (one.lost, one.out_of_order, one.repeats, one.attempts, one.failed)
    return f"| {broker} | {name} | {' | '.join(map(str, counts))} | {ratio} | {one.recovery:.1f} s |"


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
