"""The overview: what waits, what failed, how fast it goes, who delivers, and what needs attention."""

from __future__ import annotations

from pillarbox.contracts.store import Order, Selection
from pillarbox.dashboard.charts import BAND_ACTIONS, WINDOWS, ChartWindow, build_chart, list_bands
from pillarbox.dashboard.conditions import list_first_steps, merge_alerts, summarize_alerts
from pillarbox.dashboard.filters import FilterError
from pillarbox.dashboard.view import Page, View
from pillarbox.errors import PillarboxError
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.operations.documents import to_status_document
from pillarbox.operations.monitor import Status

__all__ = ["find_window", "show_charts", "show_overview"]

_MOST_BANDS = 500
_MOST_LINES = 100
"""Lines and folded alerts on the overview; the page of destinations has all lines."""


async def show_overview(view: View) -> Page:
    """Show the status of a store. While it is down, the last good numbers with their time."""
    sample = await view.sample()
    status = sample.status
    window = find_window(view)
    served = [] if status is None else [one for one in status.destinations if one.name != SKIPPED_DESTINATION]
    oldest = min((one.oldest_due_at for one in served if one.oldest_due_at is not None), default=None)
    groups = merge_alerts(sample.alerts)
    steps = [] if status is None else list_first_steps(status, has_delivered=await _has_delivered(view, status))
    context = {
        "status": status,
        "lines": sample.lines[:_MOST_LINES],
        "lines_left": max(len(sample.lines) - _MOST_LINES, 0),
        "groups": groups[:_MOST_LINES],
        "groups_left": max(len(groups) - _MOST_LINES, 0),
        "alerts_summary": summarize_alerts(sample.alerts),
        "steps": steps,
        "oldest": oldest,
        "due": sum(one.due for one in served),
        "due_more": any("due" in one.more for one in served),
        "rate": sum(one.rate for one in served),
        "delivered": sum(one.delivered for one in served),
        "failed": sum(one.failed for one in served),
        "failed_more": any("failed" in one.more for one in served),
        "window": window,
        "windows": WINDOWS,
    }
    document = {"error": sample.error} if status is None else to_status_document(status, sample.alerts)
    return Page("overview.html", "Overview", context, document, section="overview")


async def _has_delivered(view: View, status: Status) -> bool:
    """Return whether a message was ever delivered. The store is asked only while it has nothing else to show."""
    if any(one.delivered or one.due or one.failed for one in status.destinations):
        return True
    try:
        store = await view.open()
        return bool(await store.find(Selection(states=[State.DELIVERED]), limit=1, payloads=False, order=Order.LATEST))
    except PillarboxError:  # the page shows the last good numbers
        return True


def find_window(view: View) -> ChartWindow:
    """Return the window that the URL names, an hour if it names none."""
    name = view.query.get("window", "1h")
    if name not in WINDOWS:
        raise FilterError(f"{name[:20]!r} is no window of a chart: there are {', '.join(WINDOWS)}.")
    return WINDOWS[name]


async def show_charts(view: View) -> Page:
    """Answer the series of the charts, of all destinations or of one, with the bands of pauses and outages."""
    window = find_window(view)
    destination = view.query.get("destination") or None
    store = await view.open()
    now = await store.now()
    rollups = await store.rollups(window=window.length, step=window.step)
    if destination is not None:
        rollups = [one for one in rollups if one.destination == destination]
    journal = await store.journal(
        destination=destination, actions=[one.value for one in BAND_ACTIONS], messages=False, limit=_MOST_BANDS
    )
    pauses = [one for one in await store.pauses() if destination in (None, one.destination)]
    bands = list_bands(journal, since=now - window.length, pauses=pauses)
    document = {
        **build_chart(rollups, now=now, window=window),
        "window": window.name,
        "destination": destination,
        "bands": bands,
    }
    return Page("charts.html", "Charts", {"chart": document}, document, section="overview")
