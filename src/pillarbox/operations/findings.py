"""Findings of the doctor: each says what is wrong with a store or a destination, why it matters, and what to do.

Pure: `doctor` does the checks. Findings about one kind of store or broker are beside it, in its `checks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.store import Count, Pause, StoreFeatures
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
from pillarbox.stores.catalog import Difference
from pillarbox.stores.tls import describe_unverified
from pillarbox.stores.urls import StoreUrl

__all__ = [
    "ClockSkew",
    "find_clear_login",
    "find_clock_skew",
    "find_deferred_handoffs",
    "find_pauses",
    "find_schema_differences",
    "find_unserved_destinations",
    "find_unshared_store",
    "find_unverified_store",
    "report_impossible_handoff",
    "report_misconfigured_destination",
    "report_silent_destination",
    "report_unchecked",
    "report_uncompared_tables",
    "report_uninspected_destination",
    "report_unreachable_destination",
    "report_unusable_store",
]

# --- destinations ---


def report_misconfigured_destination(error: Exception) -> Finding:
    """Report that no transport could be made: its URL or an option is wrong, or its driver is missing."""
    code, fix = "destination.misconfigured", "Correct its table, variables or flags."
    if isinstance(error, MissingExtra):
        code, fix = "destination.driver-missing", f'Run pip install "pillarbox[{error.extra}]".'
    why = "A relay with this configuration does not start."
    return Finding(code=code, severity=Severity.CRITICAL, what=str(error), why=why, fix=fix)


def report_unreachable_destination(error: Exception) -> Finding:
    """Report that a destination refused the connection or the login, or is not what it should be."""
    # Our own errors say what to do. Those of a foreign transport may not.
    fix = "Check that it runs, that this machine may reach it, and the login."
    if isinstance(error, PillarboxError):
        fix = "Do what the sentence says; relays try again by themselves."
    return Finding(
        code="destination.unreachable",
        severity=Severity.CRITICAL,
        what=str(error),
        why="Its messages wait until it can be used; that costs them nothing else.",
        fix=fix,
    )


def report_silent_destination(seconds: float) -> Finding:
    """Report that a destination took the connection or the request, and never answered."""
    return Finding(
        code="destination.no-answer",
        severity=Severity.CRITICAL,
        what=f"It did not answer within {seconds:g} s.",
        why="A relay's sends would time out, and its messages wait.",
        fix="Look whether it is overloaded or hangs, or whether a firewall drops what is sent; give it more time with "
        "--timeout.",
    )


def report_uninspected_destination(error: Exception) -> Finding:
    """Report that a destination answers, but that its settings could not be read."""
    return Finding(
        code="destination.not-inspected",
        severity=Severity.WARNING,
        what=f"It answers, but its settings could not be looked at: {error}",
        why="A setting that loses messages would not be seen.",
        fix="Fix what the sentence says, or give it more time with --timeout.",
    )


def find_clear_login(transport: object) -> Iterator[Finding]:
    """Find that a login goes to a broker on another machine without encryption."""
    settings = getattr(transport, "settings", None)
    describe = getattr(settings, "describe_clear_login", None)
    encryption = None if describe is None else describe()
    if encryption is not None:
        yield Finding(
            code="destination.login-in-clear",
            severity=Severity.WARNING,
            what="The broker is on another machine, and the login goes there unencrypted.",
            why="Whoever listens, or answers in its place, gets the password and the messages.",
            fix=f"Use {encryption}, so that the connection is encrypted and the certificate is checked.",
        )


# --- the store ---

_STORE_ERRORS: Final[Mapping[type[PillarboxError], tuple[str, str]]] = {
    SchemaMissing: (
        "store.schema-missing",
        "Run `pillarbox schema install`, or `schema verify` if some are there.",
    ),
    SchemaOutdated: ("store.schema-outdated", "Run `pillarbox schema upgrade`."),
    SchemaNewer: ("store.schema-newer", "Upgrade Pillarbox on this machine."),
    SchemaMixed: ("store.schema-mixed", "See what `pillarbox schema verify` lists, and docs/schema.md."),
    StoreUnavailable: ("store.unreachable", "Check that it runs, and the store URL with its login."),
    MissingExtra: ("store.driver-missing", "Install the driver: the command is in the sentence."),
}
"""Code and fix for each error of opening a store."""
_OTHER_STORE_ERROR: Final = ("store.unusable", "Correct the store URL or the rights on it, as the sentence says.")


def report_unusable_store(error: Exception) -> Finding:
    """Report that the store cannot be opened as a relay opens it."""
    code, fix = next((known for kind, known in _STORE_ERRORS.items() if isinstance(error, kind)), _OTHER_STORE_ERROR)
    why = "A relay does not start with it, so nothing is delivered."
    return Finding(code=code, severity=Severity.CRITICAL, what=str(error), why=why, fix=fix)


def report_other_version(error: SchemaNewer | SchemaOutdated) -> Finding:
    """Report that the tables are of another version than this release's, and that it works with them."""
    is_newer = isinstance(error, SchemaNewer)
    return Finding(
        code="store.schema-ahead" if is_newer else "store.schema-behind",
        severity=Severity.INFO,
        what=f"The tables are {'newer' if is_newer else 'older'} than this release, which works with them.",
        why="Only neighbouring versions fit each other, so the next upgrade may not."
        if is_newer
        else "What the older tables lack is switched off.",
        fix="Upgrade Pillarbox on this machine." if is_newer else "Run `pillarbox schema upgrade`.",
    )


def report_unchecked(what: str, error: Exception) -> Finding:
    """Report that one check of an open store failed."""
    return Finding(
        code="store.not-checked",
        severity=Severity.WARNING,
        what=f"{what} could not be looked at: {error}",
        why="What is wrong there would not be seen.",
        fix="Fix what the sentence says, give more time with --timeout, or ask as a role with more rights.",
    )


def report_uncompared_tables() -> Finding:
    """Report that this login may not compare the tables with those of their version. A relay needs no such right."""
    return Finding(
        code="store.schema-not-compared",
        severity=Severity.INFO,
        what="This login may not look at all tables, so only their version was checked, not their columns and indexes.",
        why="Somebody may have changed them by hand. A relay's login does not need the right to see that.",
        fix="Run `pillarbox schema verify` with the login that installed them, now and then.",
    )


_SHOWN_DIFFERENCES: Final = 5


def find_schema_differences(differences: Sequence[Difference]) -> Iterator[Finding]:
    """Find that the tables are not those of their version. Additions are only a warning: they may be intended."""
    if not differences:
        return
    is_lacking = any(difference.problem != "unexpected" for difference in differences)
    shown = "; ".join(map(str, differences[:_SHOWN_DIFFERENCES]))
    if len(differences) > _SHOWN_DIFFERENCES:
        shown += f"; and {len(differences) - _SHOWN_DIFFERENCES} more"
    yield Finding(
        code="store.schema-mixed",
        severity=Severity.CRITICAL if is_lacking else Severity.WARNING,
        what=f"The tables are not what their version should have: {shown}.",
        why="The relay's statements may fail, be slow, or find less than there is.",
        fix="See what `pillarbox schema verify` lists, and docs/schema.md.",
    )


def find_unshared_store(features: StoreFeatures) -> Iterator[Finding]:
    """Find that the store is in one process's memory."""
    if not features.shared:
        yield Finding(
            code="store.not-shared",
            severity=Severity.WARNING,
            what=f"A {features.name} store lives in one process, and is gone with it.",
            why="A relay that runs on its own sees none of the messages, and all of them are lost at the end.",
            fix="Use an SQLite or PostgreSQL store.",
        )


def find_unverified_store(url: StoreUrl) -> Iterator[Finding]:
    """Find that a server on another machine need not prove who it is."""
    choice = describe_unverified(url.dsn)
    if choice is not None:
        authority = "ssl_ca=FILE" if url.scheme == "mysql" else "sslrootcert=FILE"
        yield Finding(
            code="store.not-verified",
            severity=Severity.WARNING,
            what=f"The database is on another machine, and with {choice} it need not prove that it is the one.",
            why="Whoever answers in its place gets the password and the messages.",
            fix=f"Leave {choice.partition('=')[0]} out, so that the certificate is checked; name an authority of your "
            f"own with {authority}.",
        )


class ClockSkew(msgspec.Struct, frozen=True):
    """Time by which the store's clock is ahead of this machine's, and how far off that measurement may be."""

    ahead: timedelta
    uncertainty: timedelta

    @property
    def at_least(self) -> timedelta:
        return max(abs(self.ahead) - self.uncertainty, timedelta(0))


_TOLERATED_SKEW: Final = timedelta(seconds=5)


def find_clock_skew(skew: ClockSkew) -> Iterator[Finding]:
    """Find that the store's clock and this machine's are surely more than 5 seconds apart."""
    if skew.at_least > _TOLERATED_SKEW:
        direction = "ahead of" if skew.ahead > timedelta(0) else "behind"
        yield Finding(
            code="store.clock-skew",
            severity=Severity.WARNING,
            what=f"The database's clock is {abs(skew.ahead).total_seconds():.0f} s {direction} this machine's.",
            why="Times that a program here names are off by as much: deliver_at, event times, and the timestamps of "
            "signed webhooks, which receivers refuse when they are minutes old.",
            fix="Let both machines take their time from the same NTP servers.",
        )


def find_unserved_destinations(counts: Sequence[Count], *, known: Collection[str], limit: int) -> Iterator[Finding]:
    """Find messages for a destination that is neither configured here nor served by a relay that is alive."""
    for name, waiting in sorted(_count_open(counts).items()):
        if name not in known and name != SKIPPED_DESTINATION:
            yield Finding(
                code="store.unserved-destination",
                severity=Severity.CRITICAL,
                what=f"{_format_waiting(waiting, limit)} for the destination {name}, which is not configured here and "
                "which no living relay serves.",
                why="They wait until somebody delivers them.",
                fix=f"Configure [destinations.{name}]; or correct the name where it is published, and discard these "
                f"with `pillarbox messages discard --destination {name} --reason TEXT`.",
            )


def find_deferred_handoffs(counts: Sequence[Count], *, handed_off: Collection[str], limit: int) -> Iterator[Finding]:
    """Find messages with a time to wait for, for a destination that another engine delivers at once."""
    for name in sorted(handed_off):
        waiting = sum(
            count.count
            for count in counts
            if count.destination == name and count.state is State.PENDING and not count.due
        )
        if waiting:
            yield Finding(
                code="handoff.deferred-messages",
                severity=Severity.WARNING,
                what=f"{_format_waiting(waiting, limit)} for {name} until a later time, and {name} is handed off.",
                why="The engine that reads the log does not wait: they were delivered when they were written.",
                fix=f"Route messages with delay or deliver_at to a destination that a relay serves, and not to {name}.",
            )


def report_impossible_handoff(name: str) -> Finding:
    """Report that a destination is handed off on a store whose log nobody can read for it."""
    return Finding(
        code="handoff.impossible",
        severity=Severity.CRITICAL,
        what=f"The destination {name} is handed off, and this store is not PostgreSQL.",
        why="No relay serves it, and no engine can read its messages alone from the log.",
        fix=f"Take `handoff` out of [destinations.{name}], and let a relay serve it.",
    )


def find_pauses(pauses: Sequence[Pause], *, counts: Sequence[Count], limit: int) -> Iterator[Finding]:
    """Find destinations that are paused."""
    waiting = _count_open(counts)
    for pause in pauses:
        yield Finding(
            code="store.paused-destination",
            severity=Severity.WARNING,
            what=f"The destination {pause.destination} is paused since {pause.at:%Y-%m-%d %H:%M} UTC by {pause.by} "
            f"({pause.reason or 'no reason given'}). {_format_waiting(waiting[pause.destination], limit)} for it.",
            why="Nothing is delivered to it until it is resumed.",
            fix=f"When the reason is gone, run `pillarbox resume {pause.destination}`.",
        )


def _count_open(counts: Sequence[Count]) -> Counter[str]:
    """Count the messages of each destination that are pending or being sent."""
    waiting: Counter[str] = Counter()
    for count in counts:
        if count.state in (State.PENDING, State.SENDING):
            waiting[count.destination] += count.count
    return waiting


def _format_waiting(waiting: int, limit: int) -> str:
    number = f"{limit} or more" if waiting >= limit else "No" if not waiting else str(waiting)
    return f"{number} message waits" if waiting == 1 else f"{number} messages wait"
