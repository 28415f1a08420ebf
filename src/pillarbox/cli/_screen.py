"""The screen of `pillarbox status`, and alerts as text: sections of lines that fit the width and height of a terminal.

Pure. The destinations come first, and they are the last to be shortened.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from pillarbox.cli._table import Column, align_columns, cut, measure, to_line, wrap
from pillarbox.contracts.finding import Severity
from pillarbox.durations import format_age, format_duration, format_latency
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION
from pillarbox.operations.alerts import Alert
from pillarbox.operations.monitor import NOT_GIVEN_UP, DestinationStatus, Status
from pillarbox.operations.stores import StoreAnswer

__all__ = ["Backlogs", "Line", "Section", "fit_height", "paint_alerts", "paint_status", "paint_stores"]

Line: TypeAlias = tuple[str, Severity | None]

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARKLINE_LENGTH: Final = 30
_MAX_ALERTS: Final = 10
"""Alerts on a terminal, merged per destination; `--wide` shows the rest."""
_MAX_RELAYS: Final = 6
_RANK: Final[Mapping[Severity | None, int]] = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2, None: 3}
_LABELS: Final = {Severity.CRITICAL: "CRITICAL", Severity.WARNING: "WARNING", Severity.INFO: "note"}
_ALL: Final = "; --wide shows all"
_FOLLOW_FROM_UNSERVED: Final = ("oldest", "backlog")
"""Alerts whose remedy is to serve the destination, if no relay does."""


class Section(NamedTuple):
    """Part of a screen: lines that always stand above it, and items of which the last may be left out."""

    head: Sequence[Line]
    items: Sequence[Sequence[Line]] = ()
    noun: str = ""
    """What the items are, in the plural, for `+7 more`."""
    hint: str = ""
    """Text after `+7 more`."""

    def take(self, count: int) -> list[Line]:
        """Return the lines of the worst items, as many as given, and how many are left out."""
        if count >= len(self.items):
            return [*self.head, *(line for item in self.items for line in item)]
        worst = sorted(self.items, key=lambda item: min(_RANK[severity] for _, severity in item))[:count]
        note = _note_more(len(self.items) - count, self.noun)
        return [*self.head, *(line for item in worst for line in item), (f"{note}{self.hint}", None)]


def _note_more(count: int, noun: str) -> str:
    return f"+{count:,} more {noun.removesuffix('s') if count == 1 else noun}".rstrip()


def fit_height(sections: Sequence[Section], height: int | None) -> list[Line]:
    """Join the sections with empty lines, and leave out what does not fit.

    First the items and then the whole of what comes last, then alerts, at last destinations: sections 2 and 1.
    """
    counts = [len(section.items) for section in sections]

    def join() -> list[Line]:
        blocks = [section.take(count) for section, count in zip(sections, counts, strict=True)]
        return [line for block in blocks for line in (*block, ("", None))][:-1]

    lines = join()
    while height is not None and len(lines) > height:
        last = [place for place, count in enumerate(counts) if count > 1 and place > 2]
        first = [place for place, count in enumerate(counts) if count > 1]
        if last:
            counts[last[-1]] -= 1
        elif len(sections) > 3 or (len(sections) > 2 and not first):
            sections, counts = sections[:-1], counts[:-1]
        elif first:
            counts[first[-1]] -= 1
        else:
            break
        lines = join()
    return lines


# --- alerts ---


def paint_alerts(alerts: Sequence[Alert], *, stores: Sequence[str | None] = (), width: int | None = None) -> list[Line]:
    """Write alerts as lines, each followed by what to do. Those of one destination are one alert.

    `stores` are the names of their stores, where there are several.
    """
    if not alerts:
        return [("All is well.", None)]
    merged = merge_alerts(alerts, stores=stores, width=width)
    return Section([], merged, "alerts", _ALL).take(len(merged) if width is None else _MAX_ALERTS)


def merge_alerts(
    alerts: Sequence[Alert], *, stores: Sequence[str | None] = (), width: int | None, brief: bool = False
) -> list[list[Line]]:
    """Write the alerts of each destination as one: every condition, then every remedy once; if `brief` only the first.

    The alerts are sorted, the worst first: a destination has the place and the severity of its worst. Of several
    stores the name stands before the text, once.
    """
    groups: dict[tuple[str | None, ...], list[Alert]] = defaultdict(list)
    for store, alert in zip(stores or [None] * len(alerts), alerts, strict=True):
        known = alert.destination is not None or alert.consumer is not None
        groups[(store, alert.destination, alert.consumer) if known else (store, alert.what)].append(alert)
    return [_paint_group(group, store=store, width=width, brief=brief) for (store, *_), group in groups.items()]


def _paint_group(group: Sequence[Alert], *, store: str | None, width: int | None, brief: bool) -> list[Line]:
    severity = group[0].severity
    what = " ".join(to_line(alert.what) for alert in group)
    what = what if store is None else f"{store}: {what}"
    unserved = any(alert.name == "unserved" for alert in group)
    helpful = [alert for alert in group if not (unserved and alert.name in _FOLLOW_FROM_UNSERVED)]
    remedies = list(dict.fromkeys(to_line(alert.do) for alert in helpful))
    lines = wrap(what, width, first=f"{_LABELS[severity]}: ", indent="  ")
    advice = [line for text in remedies[: 1 if brief else None] for line in wrap(text, width, first="  ", indent="  ")]
    return [*((line, severity) for line in lines), *((line, None) for line in advice)]


# --- one store ---

_WAITING: Final = (
    Column("destination", least=12),
    Column("due"),
    Column("later", rank=3),
    Column("sending", rank=2),
    Column("failed"),
    Column("oldest"),
    Column("lanes", rank=4),
    Column("relays", least=8),
)
_TRIED: Final = (
    Column("destination", least=12),
    Column("topic", least=10),
    Column("messages"),
    Column("attempts", rank=2),
    Column("tries", rank=1),
    Column("oldest"),
)


class Backlogs:
    """Backlogs of each destination at the latest looks."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_SPARKLINE_LENGTH))

    def add(self, status: Status) -> None:
        """Remember the backlogs of this look."""
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


def paint_status(
    status: Status, alerts: Sequence[Alert], backlogs: Backlogs, *, width: int | None, height: int | None = None
) -> list[Line]:
    """Write the screen as lines. A destination has the colour of its worst alert."""
    sections = [Section([(f"{status.at:%Y-%m-%d %H:%M:%S} UTC by the store's clock", None)])]
    listed = [one for one in status.destinations if one.name != SKIPPED_DESTINATION or one.due + one.sending]
    if listed:
        severities = {alert.destination: alert.severity for alert in reversed(alerts)}
        sections.append(_list_waiting(listed, status, severities, backlogs, width=width))
    else:
        sections.append(Section([("No message waits or has failed, and none was delivered lately.", None)]))
    if alerts:
        merged = merge_alerts(alerts, width=width, brief=height is not None)
        kept = merged if width is None or height is not None else merged[:_MAX_ALERTS]
        sections.append(Section([], kept, "alerts"))
        if len(kept) < len(merged):
            note = _note_more(len(merged) - len(kept), "alerts")
            sections[-1] = Section([], [*kept, [(f"{note}{_ALL}", None)]])
    else:
        sections.append(Section([("All is well.", None)]))
    if listed:
        sections.append(_list_delivered(listed, status, width=width))
    if status.skipped:
        sections.append(Section([(line, None) for line in wrap(_format_skipped(status), width)]))
    if status.waiting:
        sections.append(_list_tried(status, width=width))
    if status.inboxes:
        sections.append(_list_inboxes(status, width=width))
    relays = wrap(_format_relays(status, limit=None if width is None else _MAX_RELAYS), width)
    return fit_height([*sections, Section([(line, None) for line in relays])], height)


def _list_waiting(
    listed: Sequence[DestinationStatus],
    status: Status,
    severities: Mapping[str | None, Severity],
    backlogs: Backlogs,
    *,
    width: int | None,
) -> Section:
    """Write what waits, and behind it, if there is room, how much that was at the latest looks."""
    rows = [_format_waiting(one, status) for one in listed]
    (heading,), *lines = align_columns(_WAITING, rows, width=width)
    room = max(measure(line) for line in (heading, *(line for (line,) in lines))) + 2
    length = _SPARKLINE_LENGTH if width is None else min(_SPARKLINE_LENGTH, width - room)
    items = []
    for one, (line,) in zip(listed, lines, strict=True):
        marks = backlogs.sparkline(one.name, length=length)
        padded = f"{line}{' ' * (room - measure(line))}{marks}" if marks else line
        items.append([(padded, severities.get(one.name))])
    return Section([(heading, None)], items, "destinations")


def _list_delivered(listed: Sequence[DestinationStatus], status: Status, *, width: int | None) -> Section:
    columns = (
        Column(f"in the last {format_duration(status.window)}", least=12),
        Column("delivered"),
        Column("rate"),
        Column("p50", rank=2),
        Column("p99", rank=1),
        Column("end to end", rank=4),
        Column("retried", rank=3),
    )
    rows = [_format_delivered(one) for one in listed]
    (heading,), *lines = align_columns(columns, rows, width=width)
    return Section([(heading, None)], [[(line, None)] for (line,) in lines], "destinations")


def _format_waiting(one: DestinationStatus, status: Status) -> tuple[str, ...]:
    counts = [
        f"{getattr(one, name):,}" + ("+" if name in one.more else "") for name in ("due", "later", "sending", "failed")
    ]
    age = format_age(one.oldest_due_at, status.at)
    return one.name, *counts, age, f"{one.lanes}/{PARTITIONS}", _format_served(one)


def _format_delivered(one: DestinationStatus) -> tuple[str, ...]:
    latency, end_to_end = one.latency, one.end_to_end
    return (
        one.name,
        f"{one.delivered:,}",
        f"{one.rate:,.0f}/s" if one.rate >= 10 else f"{one.rate:.1f}/s",
        "" if latency is None else format_latency(latency.p50),
        "" if latency is None else format_latency(latency.p99),
        "" if end_to_end is None else format_latency(end_to_end.average),
        f"{one.retry_rate:.0%}" if one.attempts else "",
    )


def _format_served(one: DestinationStatus) -> str:
    if one.pause is not None:
        return f"paused by {cut(to_line(one.pause.by), 12)}"
    if one.handed_off_to is not None and not one.is_served:
        return one.handed_off_to
    if not one.is_served:
        return "nobody"
    return str(one.relays) if one.reachable == one.relays else f"{one.reachable} of {one.relays} reach it"


def _list_tried(status: Status, *, width: int | None) -> Section:
    """Write what was tried and is not given up: a line for the messages of a topic, and below it their last error."""
    rows = [
        (
            one.destination, one.topic, f"{one.count:,}{'+' if one.more else ''}", str(one.attempts),
            f"{one.tries:,} in {format_age(one.first_try_at, status.at)}" if one.first_try_at else str(one.tries),
            format_age(one.since, status.at),
        )
        for one in status.waiting
    ]  # fmt: skip
    heading, *lines = align_columns(_TRIED, rows, width=width)
    head = [*wrap(f"Tried and {NOT_GIVEN_UP}:", width), *heading]
    items = [
        [(line, None), *((text, None) for text in wrap(to_line(one.error), width, first="  ", indent="  ", limit=2))]
        for one, (line,) in zip(status.waiting, lines, strict=True)
    ]
    return Section([(line, None) for line in head], items, "topics")


def _format_skipped(status: Status) -> str:
    more = "+" if status.skipped_more else ""
    return f"{status.skipped:,}{more} skipped, because no route takes {'it' if status.skipped == 1 else 'them'}"


def _list_inboxes(status: Status, *, width: int | None) -> Section:
    rows = [
        (one.consumer, f"{one.failed:,}{'+' if one.more else ''}", format_age(one.oldest_at, status.at))
        for one in status.inboxes
    ]
    (heading,), *lines = align_columns((Column("consumer", least=12), "failed", "oldest"), rows, width=width)
    return Section([(heading, None)], [[(line, None)] for (line,) in lines], "consumers")


def _format_relays(status: Status, *, limit: int | None) -> str:
    if not status.relays:
        return "No relay is alive."
    alive = [f"{to_line(one.service)} on {to_line(one.host)} ({one.pid})" for one in status.relays]
    count = f"{len(alive)} relay{'s' * (len(alive) > 1)} alive: "
    if limit is not None and len(alive) > limit:
        alive = [*alive[:limit], f"+{len(alive) - limit:,} more"]
    return count + ", ".join(alive)


# --- several stores ---

_STORES: Final = (
    Column("store", least=10),
    Column("due"),
    Column("later", rank=4),
    Column("sending", rank=5),
    Column("failed"),
    Column("oldest", rank=2),
    Column("rate", rank=3),
    Column("relays", rank=1),
    Column("alerts", is_below=True),
)


def paint_stores(
    answers: Sequence[StoreAnswer[Status]],
    alerts: Mapping[str, Sequence[Alert]],
    *,
    width: int | None,
    height: int | None = None,
) -> list[Line]:
    """Write a line for each store in the colour of its worst alert, then why some cannot be asked."""
    named = [one for one in answers if one.name]
    rows = [_summarize(one.name, one.value, alerts.get(one.name, ())) for one in named]
    heading, *lines = align_columns(_STORES, rows, width=width)
    items = []
    for one, texts in zip(named, lines, strict=True):
        found = alerts.get(one.name, ())
        severity = Severity.CRITICAL if one.value is None else found[0].severity if found else None
        items.append([(text, severity) for text in texts])
    sections = [Section([(line, None) for line in heading], items, "stores")]
    failed = [
        [(line, Severity.CRITICAL) for line in wrap(f"{one.name or 'tenants'}: {to_line(one.error or '')}", width)]
        for one in answers
        if one.error is not None
    ]
    if failed:
        sections.append(Section([], failed, "stores"))
    return fit_height(sections, height)


def _summarize(name: str, status: Status | None, alerts: Sequence[Alert]) -> tuple[str, ...]:
    if status is None:
        return name, "?", "?", "?", "?", "?", "?", "?", "not asked"
    all_of = status.destinations
    oldest = max((status.oldest_age(one) for one in all_of), default=timedelta(0))
    return (
        name,
        *(f"{sum(getattr(one, what) for one in all_of):,}" for what in ("due", "later", "sending", "failed")),
        format_duration(timedelta(seconds=round(oldest.total_seconds()))) if oldest else "",
        f"{sum(one.rate for one in all_of):,.1f}/s",
        str(len(status.relays)),
        f"{len(alerts)}: {to_line(alerts[0].what)}" if alerts else "",
    )
