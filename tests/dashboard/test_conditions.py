"""What the overview says in one line, which button it offers, and how alerts are merged: decided without a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import InboxCount, Pause, RelayInfo
from pillarbox.dashboard.access import Role
from pillarbox.dashboard.conditions import (
    Attention,
    Line,
    Remedy,
    Subject,
    count_attention,
    list_first_steps,
    list_lines,
    list_remedies,
    merge_alerts,
    summarize_alerts,
)
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.monitor import DestinationStatus, Status

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RELAY = RelayInfo(
    relay_id=UUID(int=1), service="shop", host="web-1", pid=7, version="1", destinations=["billing"],
    reachable=["billing"],
)  # fmt: skip
PAUSE = Pause(destination="billing", by="ann", at=NOW - 14 * MINUTE, reason="they move")


def destination(name: str = "billing", **more: Any) -> DestinationStatus:
    values: dict[str, Any] = {
        "topics": [], "due": 0, "later": 0, "sending": 0, "failed": 0, "skipped": 0, "discarded": 0,
        "oldest_due_at": None, "delivered": 0, "retried": 0, "given_up": 0, "latency": None, "end_to_end": None,
        "rate": 0.0, "relays": 2, "reachable": 2, "lanes": 64, "pause": None,
    }  # fmt: skip
    return DestinationStatus(name=name, **{**values, **more})


def status(*destinations: DestinationStatus, relays: Sequence[RelayInfo] = (RELAY,), **more: Any) -> Status:
    return Status(at=NOW, destinations=destinations, relays=relays, stuck=[], near_failure=[], **more)


def alert(name: str, severity: Severity = Severity.WARNING, about: str | None = "billing", **more: Any) -> Alert:
    return Alert(
        name=name, severity=severity, destination=about, what=f"{name}!", do=more.pop("do", f"fix {name}"), **more
    )


def list_found(*destinations: DestinationStatus, **more: Any) -> list[Line]:
    found = status(*destinations, **more)
    return list_lines(found, find_alerts(found, Thresholds()))


@pytest.mark.parametrize(
    ("one", "chip", "why", "severity", "remedies"),
    [
        (destination(), "ok", "", None, []),
        (destination(due=3), "waiting", "3 due", None, []),
        (destination(relays=0, reachable=0), "idle", "no relay serves it", None, []),
        (
            destination(relays=0, reachable=0, due=3),
            "unserved", "no relay serves it", Severity.CRITICAL, [Remedy.SEE_RELAYS],
        ),
        (destination(reachable=0, due=3), "outage", "no relay can reach it", Severity.CRITICAL, [Remedy.PROBE]),
        (
            destination(reachable=0, failed=1),
            "outage", "no relay can reach it", Severity.CRITICAL, [Remedy.PROBE, Remedy.SEE_FAILURES],
        ),
        (destination(reachable=1), "partial", "1 of 2 relays reach it", Severity.WARNING, [Remedy.PROBE]),
        (
            destination(failed=22),
            "failed", "22 need attention", Severity.CRITICAL, [Remedy.SEE_FAILURES, Remedy.REDRIVE],
        ),
        (destination(pause=PAUSE), "paused", "by ann for 14m: they move", Severity.WARNING, [Remedy.RESUME]),
        (
            destination(pause=PAUSE, failed=2, due=5, oldest_due_at=NOW - 14 * MINUTE),
            "failed", "paused by ann for 14m: they move; 2 need attention", Severity.CRITICAL,
            [Remedy.SEE_FAILURES, Remedy.REDRIVE, Remedy.RESUME],
        ),
        (
            destination(pause=PAUSE, due=5, oldest_due_at=NOW - 14 * MINUTE),
            "paused", "by ann for 14m: they move", Severity.CRITICAL, [Remedy.RESUME],
        ),
        (
            destination(relays=0, reachable=0, failed=1),
            "failed", "no relay serves it; 1 needs attention", Severity.CRITICAL,
            [Remedy.SEE_FAILURES, Remedy.REDRIVE],
        ),
        (
            destination(handed_off_to="debezium", failed=1, relays=0, reachable=0),
            "failed", "debezium delivers it; 1 needs attention", Severity.CRITICAL,
            [Remedy.SEE_FAILURES, Remedy.REDRIVE],
        ),
        (
            destination(due=5, oldest_due_at=NOW - 14 * MINUTE), "late",
            "The longest waiting message for billing has been due for 14m.", Severity.CRITICAL, [Remedy.SEE_MESSAGES],
        ),
        (
            destination(handed_off_to="debezium", due=1, relays=0, reachable=0),
            "handed-off", "debezium delivers it", None, [],
        ),
    ],
)  # fmt: skip
def test_a_destination_has_its_worst_condition_and_the_button_for_it(
    one: DestinationStatus, chip: str, why: str, severity: Severity | None, remedies: list[Remedy]
) -> None:
    (line,) = list_found(one)

    assert (line.chip, line.why, line.severity, list(line.remedies)) == (chip, why, severity, remedies)
    assert line.status is one


def test_lines_with_the_worst_conditions_come_first() -> None:
    lines = list_found(
        destination("a"), destination("b", pause=PAUSE), destination("c", failed=1), destination("d"),
        inboxes=[InboxCount(consumer="aaa", failed=1, oldest_at=NOW)],
    )  # fmt: skip

    assert [line.name for line in lines] == ["c", "aaa", "b", "a", "d"]
    assert count_attention(lines) == Attention(3, Severity.CRITICAL)
    assert count_attention(lines[2:]) == Attention(1, Severity.WARNING)
    assert count_attention(lines[3:]) == Attention(0, None)


def test_advice_quotes_the_name_of_a_consumer() -> None:
    inbox = InboxCount(consumer="my invoices; id", failed=2, oldest_at=NOW - MINUTE)
    (alert,) = [one for one in find_alerts(status(inboxes=[inbox]), Thresholds()) if one.consumer]

    assert "`pillarbox inbox redrive --consumer 'my invoices; id'`" in alert.do


def test_inboxes_and_relays_have_lines_too() -> None:
    inbox = InboxCount(consumer="invoices", failed=2, oldest_at=NOW - MINUTE)
    lines = {line.name: line for line in list_found(relays=[], inboxes=[inbox])}

    assert lines["invoices"].subject is Subject.INBOX
    assert (lines["invoices"].chip, lines["invoices"].remedies) == ("failed", (Remedy.SEE_INBOX,))
    assert (lines["relays"].chip, lines["relays"].remedies) == ("few relays", (Remedy.SEE_RELAYS,))


def test_messages_without_a_route_have_a_line_and_are_no_destination() -> None:
    first, second = list_found(destination("_skipped", skipped=3), destination())

    assert (first.name, first.chip, first.subject, first.remedies) == (
        "skipped", "no route", Subject.STORE, (Remedy.SEE_SKIPPED,),
    )  # fmt: skip
    assert second.name == "billing"


def test_an_alert_that_this_page_does_not_know_is_a_line_all_the_same() -> None:
    alerts = [alert("brand_new", Severity.CRITICAL), alert("other_new", about=None), alert("gone", about="nowhere")]
    lines = {line.name: line for line in list_lines(status(destination()), alerts)}

    assert (lines["billing"].chip, lines["billing"].why) == ("critical", "brand_new!")
    assert (lines["other new"].chip, lines["other new"].subject) == ("warning", Subject.STORE)
    assert lines["nowhere"].subject is Subject.DESTINATION
    assert all(line.remedies == (Remedy.OPEN,) for line in lines.values())


@pytest.mark.parametrize(
    ("role", "read_only", "shown"),
    [
        (Role.VIEWER, False, [Remedy.SEE_FAILURES]),
        (Role.OPERATOR, False, [Remedy.RESUME, Remedy.PROBE, Remedy.SEE_FAILURES, Remedy.REDRIVE]),
        (Role.OWNER, True, [Remedy.SEE_FAILURES]),
    ],
)
def test_a_line_offers_only_what_its_viewer_may_do(role: Role, read_only: bool, shown: list[Remedy]) -> None:
    remedies = (Remedy.RESUME, Remedy.PROBE, Remedy.SEE_FAILURES, Remedy.REDRIVE)
    line = Line(subject=Subject.DESTINATION, name="a", chip="x", why="", severity=None, remedies=remedies)

    assert list_remedies(line, role=role, read_only=read_only) == shown


def test_alerts_about_one_subject_are_one_group_and_say_each_advice_once() -> None:
    alerts = [
        alert("failed", Severity.CRITICAL), alert("backlog", Severity.CRITICAL, do="look"),
        alert("inbox_failed", Severity.CRITICAL, None, consumer="billing"), alert("oldest", do="look"),
        alert("oldest", about="mail"),
    ]  # fmt: skip

    groups = merge_alerts(alerts)
    assert [(one.subject, one.name, one.severity) for one in groups] == [
        (Subject.DESTINATION, "billing", Severity.CRITICAL),
        (Subject.INBOX, "billing", Severity.CRITICAL),
        (Subject.DESTINATION, "mail", Severity.WARNING),
    ]
    assert list(groups[0].what) == ["failed!", "backlog!", "oldest!"]
    assert list(groups[0].advice) == ["fix failed", "look"]
    assert summarize_alerts(alerts) == "3 critical, 2 warning"
    assert summarize_alerts([]) == ""


def test_an_empty_store_shows_the_first_steps_until_a_message_was_written() -> None:
    def name_done(found: Status, *, has_delivered: bool = False) -> list[tuple[str, bool]]:
        return [(step.name, step.is_done) for step in list_first_steps(found, has_delivered=has_delivered)]

    assert name_done(status(relays=[])) == [("tables", True), ("message", False), ("relay", False)]
    assert name_done(status(destination())) == [("tables", True), ("message", False), ("relay", True)]
    assert name_done(status(destination()), has_delivered=True) == []
    for count in ("due", "later", "sending", "failed", "skipped", "discarded", "delivered"):
        assert name_done(status(msgspec.structs.replace(destination(), **{count: 1}))) == [], count
    assert name_done(status(inboxes=[InboxCount(consumer="a", failed=1, oldest_at=NOW)])) == []
