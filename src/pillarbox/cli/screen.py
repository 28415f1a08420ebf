"""The status screen, as text. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pillarbox.alerts import Alert
from pillarbox.cli.lines import age, shortened
from pillarbox.cli.output import table
from pillarbox.durations import duration_text
from pillarbox.message import PARTITIONS
from pillarbox.monitor import DestinationStatus, Status

__all__ = ["Rates", "alerts_text", "screen", "sparkline"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_KEPT: Final = 30
_SIGNS: Final = {"critical": "CRITICAL", "warning": "WARNING", "info": "note"}


class Rates:
    """How the backlog of each destination went, look after look."""

    def __init__(self) -> None:
        self._backlogs: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def add(self, status: Status) -> None:
        for one in status.destinations:
            self._backlogs[one.name].append(one.due + one.sending)

    def backlog(self, name: str) -> str:
        """A line that shows it; empty before the second look."""
        return sparkline(self._backlogs[name]) if len(self._backlogs[name]) > 1 else ""


def sparkline(numbers: Sequence[int]) -> str:
    """Eight heights, from nothing to the highest of them."""
    most = max(numbers, default=0)
    return "".join(_BARS[-(-number * (len(_BARS) - 1) // most) if most else 0] for number in numbers)


def screen(status: Status, *, rates: Rates) -> str:
    """Destinations, then relays."""
    parts = [f"{status.at:%Y-%m-%d %H:%M:%S} UTC by the store's clock"]
    rows = [_row(one, status, rates) for one in status.destinations]
    headings = ("destination", "due", "later", "sending", "failed", "delivered", "rate", "oldest", "p50", "p99",
                "retries", "lanes", "relays", "")  # fmt: skip
    parts.append(table(headings, rows) if rows else "No message was ever written here.")
    if status.sampled:
        parts.append("Latency and retries are of the latest deliveries alone: there were more in the window.")
    parts.append(_relays(status))
    return "\n\n".join(parts)


def _row(one: DestinationStatus, status: Status, rates: Rates) -> tuple[str, ...]:
    latency = one.latency
    return (
        one.name,
        *(_count(one, name) for name in ("due", "later", "sending", "failed", "delivered")),
        _rate(one.rate),
        age(one.oldest_due_at, status.at),
        "" if latency is None else _short(latency.p50),
        "" if latency is None else _short(latency.p99),
        f"{one.retry_rate:.0%}" if latency is not None or one.attempts_failed else "",
        f"{one.lanes}/{PARTITIONS}",
        _served(one),
        rates.backlog(one.name),
    )  # fmt: skip


def _served(one: DestinationStatus) -> str:
    if one.pause is not None:
        return f"paused by {shortened(one.pause.by, 30)}"
    if not one.is_served:
        return "nobody"
    return str(one.relays) if one.reachable == one.relays else f"{one.relays}, {one.reachable} reach it"


def _relays(status: Status) -> str:
    if not status.relays:
        return "No relay is alive."
    alive = [f"{one.service} on {one.host} ({one.pid})" for one in status.relays]
    return f"{len(alive)} relays alive: " + ", ".join(alive) if len(alive) > 1 else f"1 relay alive: {alive[0]}"


def alerts_text(alerts: Sequence[Alert]) -> str:
    """What needs a person, the worst first."""
    if not alerts:
        return "All is well."
    return "\n".join(f"{_SIGNS[alert.severity.value]}: {alert.what}\n  {alert.do}" for alert in alerts)


def _count(one: DestinationStatus, name: str) -> str:
    return f"{getattr(one, name):,}" + ("+" if name in one.more else "")


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _short(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else duration_text(timedelta(seconds=round(seconds)))
