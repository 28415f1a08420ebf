"""Conditions: one line for each destination, inbox and other subject of an alert, with its worst condition and remedy.

Pure: the overview shows the lines, every page shows how many need attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from pillarbox.contracts.finding import Severity
from pillarbox.dashboard.access import Role
from pillarbox.dashboard.formatting import describe_destination, describe_failed
from pillarbox.durations import format_age
from pillarbox.message import SKIPPED_DESTINATION
from pillarbox.operations.alerts import Alert
from pillarbox.operations.monitor import DestinationStatus, Status

__all__ = [
    "AlertGroup",
    "Attention",
    "FirstStep",
    "Line",
    "Remedy",
    "Subject",
    "build_line",
    "count_attention",
    "list_first_steps",
    "list_lines",
    "list_remedies",
    "merge_alerts",
    "summarize_alerts",
]


class Subject(StrEnum):
    """Kinds of things that a line is about."""

    DESTINATION = "destination"
    INBOX = "inbox"
    STORE = "store"
    """Everything else: relays, claims, messages without a route."""


class Remedy(StrEnum):
    """Buttons of a line, by what they say."""

    SEE_FAILURES = "See failures"
    SEE_INBOX = "See inbox"
    SEE_MESSAGES = "See messages"
    SEE_SKIPPED = "See skipped"
    SEE_RELAYS = "See relays"
    OPEN = "Open"
    REDRIVE = "Redrive…"
    RESUME = "Resume"
    PROBE = "Probe"

    @property
    def changes(self) -> bool:
        """True if it begins an action, which a viewer may not do."""
        return self in (Remedy.REDRIVE, Remedy.RESUME, Remedy.PROBE)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the overview."""

    subject: Subject
    name: str
    chip: str
    """The worst condition in one or two words."""
    why: str
    severity: Severity | None
    """None: nothing has to be done."""
    remedies: Sequence[Remedy] = ()
    status: DestinationStatus | None = None
    """Numbers of a destination."""

    @property
    def needs_attention(self) -> bool:
        return self.severity in (Severity.CRITICAL, Severity.WARNING)


class Attention(msgspec.Struct, frozen=True):
    """How many lines need attention, and how urgent the worst of them is."""

    count: int
    severity: Severity | None


class AlertGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All alerts about one subject."""

    subject: Subject
    name: str
    severity: Severity
    """The worst one's."""
    what: Sequence[str]
    """What is wrong, the worst first."""
    advice: Sequence[str]
    """What to do, each only once."""


_RANK: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO, None)
_WELL: Final = ("ok", "idle", "waiting", "handed-off")
"""Words of `describe_destination` for destinations that need nothing, unless an alert says otherwise."""
_SEVERITIES: Final[Mapping[str, Severity]] = {
    "unserved": Severity.CRITICAL, "outage": Severity.CRITICAL, "failed": Severity.CRITICAL,
    "paused": Severity.WARNING, "partial": Severity.WARNING,
}  # fmt: skip
_REMEDIES: Final[Mapping[str, tuple[Remedy, ...]]] = {
    "paused": (Remedy.RESUME,),
    "unserved": (Remedy.SEE_RELAYS,),
    "outage": (Remedy.PROBE,),
    "partial": (Remedy.PROBE,),
    "failed": (Remedy.SEE_FAILURES, Remedy.REDRIVE),
}
_ALERTS: Final[Mapping[str, tuple[str, Remedy]]] = {
    "served_twice": ("served twice", Remedy.OPEN),
    "oldest": ("late", Remedy.SEE_MESSAGES),
    "backlog": ("late", Remedy.SEE_MESSAGES),
    "waiting": ("retrying", Remedy.SEE_MESSAGES),
    "latency": ("slow", Remedy.OPEN),
    "retry_rate": ("retries", Remedy.SEE_FAILURES),
    "unpruned": ("not pruned", Remedy.OPEN),
    "sending": ("stuck", Remedy.SEE_RELAYS),
    "relays": ("few relays", Remedy.SEE_RELAYS),
    "lanes": ("free lanes", Remedy.SEE_RELAYS),
    "skipped": ("no route", Remedy.SEE_SKIPPED),
    "inbox_failed": ("failed", Remedy.SEE_INBOX),
}
"""Alerts by name: the chip, and the remedy. One that is not listed has its severity as the chip."""


def list_lines(status: Status, alerts: Sequence[Alert]) -> list[Line]:
    """List a line for every destination, and for every other subject of an alert; the most urgent first."""
    groups = _group(alerts)
    lines = []
    for one in status.destinations:
        if one.name != SKIPPED_DESTINATION:
            own = groups.pop((Subject.DESTINATION, one.name), [])
            lines.append(build_line(status, one, own))
    lines += [_build_other_line(subject, name, own[0]) for (subject, name), own in groups.items()]
    return sorted(
        lines, key=lambda line: (_RANK.index(line.severity), line.subject is not Subject.DESTINATION, line.name)
    )


def build_line(status: Status, one: DestinationStatus, alerts: Sequence[Alert]) -> Line:
    """Build the line of a destination: of its state, of its failed messages and of its own alerts the worst one."""
    chip, why = describe_destination(one)
    severity, remedies = _SEVERITIES.get(chip), _REMEDIES.get(chip, ())
    if one.pause is not None:
        reason = f": {one.pause.reason}" if one.pause.reason else ""
        why = f"by {one.pause.by} for {format_age(one.pause.at, status.at)}{reason}"
    if one.failed and severity is not Severity.CRITICAL:
        before = {"ok": "", "waiting": "", "paused": f"paused {why}; "}.get(chip, f"{why}; ")
        why = f"{before}{describe_failed(one)}"
        chip, severity, remedies = "failed", _SEVERITIES["failed"], (*_REMEDIES["failed"], *remedies)
    elif chip in _WELL and alerts:
        worst = alerts[0]
        chip, remedy = _ALERTS.get(worst.name, (worst.severity.value, Remedy.OPEN))
        severity, why, remedies = worst.severity, worst.what, (remedy,)
    elif alerts:
        severity = min(severity, alerts[0].severity, key=_RANK.index)
    if one.failed and Remedy.SEE_FAILURES not in remedies:
        remedies = (*remedies, Remedy.SEE_FAILURES)
    return Line(
        subject=Subject.DESTINATION, name=one.name, chip=chip, why=why, severity=severity, remedies=remedies, status=one
    )


def _build_other_line(subject: Subject, name: str, alert: Alert) -> Line:
    chip, remedy = _ALERTS.get(alert.name, (alert.severity.value, Remedy.OPEN))
    return Line(subject=subject, name=name, chip=chip, why=alert.what, severity=alert.severity, remedies=(remedy,))


def _group(alerts: Sequence[Alert]) -> dict[tuple[Subject, str], list[Alert]]:
    """Group alerts by what they are about. They come with the worst first, and so do the groups."""
    groups: dict[tuple[Subject, str], list[Alert]] = {}
    for alert in alerts:
        if alert.destination is not None:
            about = Subject.DESTINATION, alert.destination
        elif alert.consumer is not None:
            about = Subject.INBOX, alert.consumer
        else:
            about = Subject.STORE, alert.name.replace("_", " ")
        groups.setdefault(about, []).append(alert)
    return groups


def list_remedies(line: Line, *, role: Role, read_only: bool) -> list[Remedy]:
    """List the buttons of a line that this user may press."""
    may_change = role >= Role.OPERATOR and not read_only
    return [one for one in line.remedies if may_change or not one.changes]


def count_attention(lines: Sequence[Line]) -> Attention:
    """Count the lines that need attention."""
    urgent = [line for line in lines if line.needs_attention]
    return Attention(len(urgent), min((line.severity for line in urgent), key=_RANK.index, default=None))


def merge_alerts(alerts: Sequence[Alert]) -> list[AlertGroup]:
    """Merge alerts about one subject into one group; the worst group first."""
    return [
        AlertGroup(
            subject=subject, name=name, severity=own[0].severity, what=[alert.what for alert in own],
            advice=list(dict.fromkeys(alert.do for alert in own)),
        )
        for (subject, name), own in _group(alerts).items()
    ]  # fmt: skip


def summarize_alerts(alerts: Sequence[Alert]) -> str:
    """Say how many alerts there are of each severity: `2 critical, 1 warning`."""
    counts = [(sum(alert.severity is one for alert in alerts), one.value) for one in _RANK if one is not None]
    return ", ".join(f"{count} {name}" for count, name in counts if count)


# --- an empty store ---


class FirstStep(msgspec.Struct, frozen=True, kw_only=True):
    """One of the steps to the first delivered message."""

    name: str
    """`tables`, `message` or `relay`."""
    is_done: bool


def list_first_steps(status: Status, *, has_delivered: bool) -> list[FirstStep]:
    """List the first steps, as long as no message has ever been written; nothing afterwards."""
    counts = ("due", "later", "sending", "failed", "skipped", "discarded", "delivered")
    if has_delivered or status.inboxes or any(getattr(one, name) for one in status.destinations for name in counts):
        return []
    done = {"tables": True, "message": False, "relay": bool(status.relays)}
    return [FirstStep(name=name, is_done=is_done) for name, is_done in done.items()]
