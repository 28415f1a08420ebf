"""Series for charts, from the counters of each minute; bands of pauses and outages, from the journal. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.store import Action, JournalEntry, Pause, Rollup
from pillarbox.operations.monitor import compute_latency, sum_rollups

__all__ = [
    "BAND_ACTIONS",
    "WINDOWS",
    "Band",
    "ChartWindow",
    "Outages",
    "build_chart",
    "draw_sparkline",
    "list_backlogs",
    "list_bands",
]


class ChartWindow(msgspec.Struct, frozen=True):
    """Length of a chart, and the time that one point of it stands for."""

    name: str
    length: timedelta
    step: timedelta


WINDOWS: Final[Mapping[str, ChartWindow]] = {
    one.name: one
    for one in (
        ChartWindow("15m", timedelta(minutes=15), timedelta(minutes=1)),
        ChartWindow("1h", timedelta(hours=1), timedelta(minutes=1)),
        ChartWindow("24h", timedelta(hours=24), timedelta(minutes=10)),
        ChartWindow("7d", timedelta(days=7), timedelta(hours=1)),
    )
}


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which a destination was paused, or could not be reached."""

    destination: str
    kind: str
    """`pause` or `outage`."""
    start: datetime
    end: datetime | None
    """None: it lasts."""
    by: str
    reason: str


def list_times(now: datetime, window: ChartWindow) -> list[datetime]:
    """List the points of a chart: the beginnings of its steps, up to the one that runs now."""
    step = window.step.total_seconds()
    last = datetime.fromtimestamp(now.timestamp() // step * step, tz=now.tzinfo)
    count = round(window.length / window.step)
    return [last - window.step * place for place in range(count - 1, -1, -1)]


def build_chart(rollups: Sequence[Rollup], *, now: datetime, window: ChartWindow) -> dict[str, object]:
    """Build every series of the overview: counts, latencies and backlogs, one value for each point of time.

    Relays write a row for every destination and minute, also when nothing is sent. A step without a row has no value,
    because nobody was there to see what happened.
    """
    times = list_times(now, window)
    by_time: dict[datetime, list[Rollup]] = defaultdict(list)
    for rollup in rollups:
        step = window.step.total_seconds()
        at = datetime.fromtimestamp(rollup.minute.timestamp() // step * step, tz=now.tzinfo)
        by_time[at].append(rollup)
    totals = [sum_rollups("*", by_time[at], at=at) if by_time[at] else None for at in times]
    latencies = [None if one is None else compute_latency(one) for one in totals]
    return {
        "times": [int(at.timestamp()) for at in times],
        "step": int(window.step.total_seconds()),
        "delivered": [None if one is None else one.delivered for one in totals],
        "failed": [None if one is None else one.failed for one in totals],
        "retried": [None if one is None else one.retried for one in totals],
        "p50": [None if one is None else round(one.p50.total_seconds(), 4) for one in latencies],
        "p95": [None if one is None else round(one.p95.total_seconds(), 4) for one in latencies],
        "p99": [None if one is None else round(one.p99.total_seconds(), 4) for one in latencies],
        "backlog": _build_backlogs(by_time, times),
    }


def _build_backlogs(
    by_time: Mapping[datetime, Sequence[Rollup]], times: Sequence[datetime]
) -> dict[str, list[int | None]]:
    names = sorted({one.destination for rollups in by_time.values() for one in rollups})
    backlogs: dict[str, list[int | None]] = {
        name: [
            max((one.backlog for one in by_time.get(at, ()) if one.destination == name), default=None) for at in times
        ]
        for name in names
    }
    if any(_is_early(values[-2], values[-1]) for values in backlogs.values()):
        for values in backlogs.values():
            values[-1] = None
    return backlogs


def _is_early(before: int | None, running: int | None) -> bool:
    """Return whether nobody may have looked yet in the step that runs: a relay's row says 0 until it has."""
    return bool(before) if running is None else running == 0 and before != 0


def list_backlogs(rollups: Iterable[Rollup], *, now: datetime, window: ChartWindow) -> dict[str, list[int | None]]:
    """Return the backlog of each destination over the window, for sparklines; None for a minute without a row."""
    times = list_times(now, window)
    places = {at: place for place, at in enumerate(times)}
    found: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(times))
    for rollup in rollups:
        place = places.get(rollup.minute)
        if place is not None:
            found[rollup.destination][place] = rollup.backlog
    return dict(found)


def draw_sparkline(values: Sequence[float | None], *, width: int, height: int) -> list[str]:
    """Return the points of SVG polylines, from nothing at the bottom to the largest value at the top.

    A value that is missing ends a line; the next one begins another. A single value is a line to itself: a dot.
    """
    largest = max((value for value in values if value is not None), default=0) or 1
    across = width / max(len(values) - 1, 1)
    inner = height - 2
    lines: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{place * across:.1f},{height - 1 - inner * value / largest:.1f}")
    return [" ".join(points if len(points) > 1 else points * 2) for points in lines if points]


# --- bands ---

BAND_ACTIONS: Final = (Action.PAUSED, Action.RESUMED, Action.OUTAGE, Action.RECOVERED, Action.TOOK_OVER)


class Outages:
    """Outages that last, by destination and the relay that reported each. It is given the journal line by line.

    An outage ends for a relay when it writes so, or when another one takes its lanes over: a relay that died, or lost
    its lease, writes nothing.
    """

    def __init__(self) -> None:
        self._reported: dict[str, dict[str, JournalEntry]] = defaultdict(dict)

    def follow(self, entry: JournalEntry) -> None:
        """Take the next line."""
        reported = self._reported[entry.destination]
        match entry.action:
            case Action.OUTAGE:
                reported.setdefault(entry.by, entry)
            case Action.RECOVERED:
                reported.pop(entry.by, None)
            case Action.TOOK_OVER:
                for relay in [one for one in reported if one in (entry.detail or "")]:
                    del reported[relay]

    def find_first(self, destination: str) -> JournalEntry | None:
        """Return the earliest line of an outage of this destination that lasts."""
        return next(iter(self._reported[destination].values()), None)


def list_bands(journal: Sequence[JournalEntry], *, since: datetime, pauses: Sequence[Pause] = ()) -> list[Band]:
    """Pair the lines that open and close a pause or an outage.

    Of several relays' outages the first opens the band, and the end of the last closes it. A pause that is in force has
    a band even if its line in the journal is gone.
    """
    open_bands: dict[tuple[str, str], Band] = {}
    bands: list[Band] = []
    outages = Outages()
    for entry in sorted(journal, key=lambda one: one.at):
        outages.follow(entry)
        kind = "pause" if entry.action in (Action.PAUSED, Action.RESUMED) else "outage"
        if entry.action in (Action.PAUSED, Action.OUTAGE):
            band = Band(destination=entry.destination, kind=kind, start=entry.at, end=None, by=entry.by,
                        reason=entry.reason or entry.error or entry.detail or "")  # fmt: skip
            open_bands.setdefault((entry.destination, kind), band)
        elif kind == "pause" or outages.find_first(entry.destination) is None:
            started = open_bands.pop((entry.destination, kind), None)
            if started is not None:
                bands.append(msgspec.structs.replace(started, end=entry.at))
    for pause in pauses:
        band = Band(destination=pause.destination, kind="pause", start=pause.at, end=None, by=pause.by,
                    reason=pause.reason)  # fmt: skip
        open_bands[pause.destination, "pause"] = band
    paused = {pause.destination for pause in pauses}
    lasting = [band for (name, kind), band in open_bands.items() if kind == "outage" or name in paused]
    return sorted(
        (band for band in (*bands, *lasting) if band.end is None or band.end > since), key=lambda band: band.start
    )
