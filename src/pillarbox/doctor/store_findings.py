"""What it means that a store answered so. Pure, and the same for every store; its own settings it judges itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.errors import (
    MissingExtra,
    PillarboxError,
    SchemaMissing,
    SchemaMixed,
    SchemaNewer,
    SchemaOutdated,
    StoreUnavailable,
)
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.protocols import Count, Finding, Pause, Severity, StoreFeatures
from pillarbox.stores.catalog import Difference

__all__ = [
    "SKEW", "Skew", "closed_to", "differing", "feature_findings", "not_checked", "pause_findings", "skew_findings",
    "topics_by_destination", "unserved_findings",
]  # fmt: skip

SKEW: Final = timedelta(seconds=5)
"""How far two clocks may be apart before it is told."""

_OPEN: Final = (State.PENDING, State.SENDING)
_SHOWN: Final = 5
_REFUSALS: Final[Mapping[type[PillarboxError], tuple[str, str]]] = {
    SchemaMissing: ("store.schema-missing", "Run `pillarbox schema install`."),
    SchemaOutdated: ("store.schema-outdated", "Run `pillarbox schema upgrade`."),
    SchemaNewer: ("store.schema-newer", "Upgrade Pillarbox on this machine."),
    SchemaMixed: ("store.schema-mixed", "See what `pillarbox schema verify` lists, and docs/schema.md."),
    StoreUnavailable: ("store.unreachable", "Check that it runs, and the store URL with its login."),
    MissingExtra: ("store.driver-missing", "Install the driver: the command is in the sentence."),
}
_UNUSABLE: Final = ("store.unusable", "Correct the store URL or the rights on it, as the sentence says.")


class Skew(msgspec.Struct, frozen=True):
    """How far the store's clock is ahead of this machine's, and how sure that is."""

    ahead: timedelta
    give_or_take: timedelta

    @property
    def at_least(self) -> timedelta:
        return max(abs(self.ahead) - self.give_or_take, timedelta(0))


def closed_to(error: Exception) -> Finding:
    """The store cannot be opened as a relay opens it."""
    code, fix = next((told for kind, told in _REFUSALS.items() if isinstance(error, kind)), _UNUSABLE)
    why = "A relay does not start with it, so nothing is delivered."
    return Finding(code=code, severity=Severity.CRITICAL, what=str(error), why=why, fix=fix)


def not_checked(what: str, error: Exception) -> Finding:
    """Something could not be looked at although the store is open."""
    return Finding(
        code="store.not-checked",
        severity=Severity.WARNING,
        what=f"{what} could not be looked at: {error}",
        why="What is wrong there would not be seen.",
        fix="Mend what the sentence says, give more time with --timeout, or ask as a role with more rights.",
    )


def differing(differences: Sequence[Difference]) -> Iterator[Finding]:
    """The tables are not what their version should have. What is merely there in addition may be meant."""
    if not differences:
        return
    is_lacking = any(difference.problem != "unexpected" for difference in differences)
    more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    yield Finding(
        code="store.schema-mixed",
        severity=Severity.CRITICAL if is_lacking else Severity.WARNING,
        what=f"The tables are not what their version should have: {'; '.join(map(str, differences[:_SHOWN]))}{more}.",
        why="The relay's statements may fail, be slow, or find less than there is.",
        fix="See what `pillarbox schema verify` lists, and docs/schema.md.",
    )


def feature_findings(features: StoreFeatures) -> Iterator[Finding]:
    if not features.shared:
        yield Finding(
            code="store.not-shared",
            severity=Severity.WARNING,
            what=f"A {features.name} store lives in one process, and is gone with it.",
            why="A relay that runs on its own sees none of the messages, and all of them are lost at the end.",
            fix="Use an SQLite or PostgreSQL store.",
        )


def skew_findings(skew: Skew, *, limit: timedelta = SKEW) -> Iterator[Finding]:
    if skew.at_least > limit:
        which = "ahead of" if skew.ahead > timedelta(0) else "behind"
        yield Finding(
            code="store.clock-skew",
            severity=Severity.WARNING,
            what=f"The database's clock is {abs(skew.ahead).total_seconds():.0f} s {which} this machine's.",
            why="Times that a program here names are off by as much: deliver_at, event times, and the timestamps of "
            "signed webhooks, which receivers refuse when they are minutes old.",
            fix="Let both machines take their time from the same NTP servers.",
        )


def unserved_findings(counts: Sequence[Count], *, known: Collection[str], limit: int) -> Iterator[Finding]:
    """Messages for a name that is neither configured here nor served by a relay that is alive."""
    for name, waiting in sorted(_waiting(counts).items()):
        if name not in known and name != SKIPPED_DESTINATION:
            yield Finding(
                code="store.unserved-destination",
                severity=Severity.CRITICAL,
                what=f"{_messages(waiting, limit)} for the destination {name}, which is not configured here and which "
                "no living relay serves.",
                why="They wait until somebody delivers them.",
                fix=f"Configure [destinations.{name}]; or correct the name where it is published, and discard these "
                f"with `pillarbox messages discard --destination {name}`.",
            )


def pause_findings(pauses: Sequence[Pause], *, counts: Sequence[Count], limit: int) -> Iterator[Finding]:
    waiting = _waiting(counts)
    for pause in pauses:
        yield Finding(
            code="store.paused-destination",
            severity=Severity.WARNING,
            what=f"The destination {pause.destination} is paused since {pause.at:%Y-%m-%d %H:%M} UTC by {pause.by} "
            f"({pause.reason or 'no reason given'}). {_messages(waiting[pause.destination], limit)} for it.",
            why="Nothing is delivered to it until it is resumed.",
            fix=f"When the reason is gone, run `pillarbox resume {pause.destination}`.",
        )


def topics_by_destination(counts: Sequence[Count]) -> Mapping[str, Sequence[str]]:
    """Which topics each destination was sent, or is to be sent."""
    topics: dict[str, set[str]] = {}
    for count in counts:
        if count.topic is not None:
            topics.setdefault(count.destination, set()).add(count.topic)
    return {name: sorted(found) for name, found in topics.items()}


def _waiting(counts: Sequence[Count]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for count in counts:
        if count.state in _OPEN:
            waiting[count.destination] += count.count
    return waiting


def _messages(waiting: int, limit: int) -> str:
    number = f"{limit} or more" if waiting >= limit else "No" if not waiting else str(waiting)
    return f"{number} message waits" if waiting == 1 else f"{number} messages wait"
