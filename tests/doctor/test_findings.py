"""What the doctor makes of what was seen. Pure: the real thing is in the other files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from pillarbox.cli.severities import exit_code
from pillarbox.doctor.report import Report, examined
from pillarbox.doctor.store_findings import (
    Skew,
    closed_to,
    differing,
    pause_findings,
    skew_findings,
    topics_by_destination,
    unserved_findings,
)
from pillarbox.doctor.telling import document, summary, told
from pillarbox.errors import (
    ConfigError,
    MissingExtra,
    SchemaMissing,
    SchemaMixed,
    SchemaNewer,
    SchemaOutdated,
    StoreError,
    StoreUnavailable,
)
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.protocols import Count, Finding, Pause, Severity
from pillarbox.stores.catalog import Difference

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def finding(code: str, severity: Severity, *, what: str = "it is so") -> Finding:
    return Finding(code=code, severity=severity, what=what, why="because", fix="do this")


def count(destination: str, number: int, *, topic: str = "orders", state: State = State.PENDING) -> Count:
    return Count(destination=destination, topic=topic, state=state, due=True, count=number, oldest_at=AT)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("worst", "code"), [(None, 0), (Severity.INFO, 0), (Severity.WARNING, 6), (Severity.CRITICAL, 7)]
)
def test_the_worst_finding_decides_the_exit_code(worst: Severity | None, code: int) -> None:
    severities = [] if worst is None else [severity for severity in Severity if severity is worst] + [Severity.INFO]
    parts = [examined("store", "x", []), examined("destination a", "y", [finding("a.a", one) for one in severities])]

    assert Report(parts).worst is worst
    assert exit_code(Report(parts).worst) == code


def test_the_worst_comes_first() -> None:
    found = [finding("b", Severity.INFO), finding("z", Severity.CRITICAL), finding("a", Severity.WARNING),
             finding("c", Severity.CRITICAL)]  # fmt: skip

    assert [one.code for one in examined("store", "x", found).findings] == ["c", "z", "a", "b"]


def test_what_a_broker_wrote_is_on_one_line_and_without_secrets() -> None:
    nasty = finding("a.a", Severity.INFO, what="refused\x1b[31m by\namqp://guest:c4nary@host/ password=c4nary2")
    (clean,) = examined("store", "x", [nasty]).findings

    assert clean.what == "refused [31m by amqp://guest:***@host/ password=***"


def test_the_text_says_what_why_and_how_to_mend_it() -> None:
    text = told(Report([examined("store", "sqlite:///a.db", []),
                        examined("destination b", "memory:", [finding("b.b", Severity.WARNING)])]))  # fmt: skip

    assert text.splitlines() == [
        "store (sqlite:///a.db)", "  fine", "",
        "destination b (memory:)", "  WARNING b.b", "    what it is so", "    why  because", "    fix  do this", "",
        "1 warning.",
    ]  # fmt: skip


def test_the_sum_counts_each_kind_and_programs_get_the_same() -> None:
    report = Report([examined("store", "x", [finding("a", one) for one in (*Severity, Severity.WARNING)])])

    assert summary(report) == "1 critical, 2 warnings, 1 note"
    assert summary(Report([])) == "All is well"
    assert msgspec.to_builtins(document(report))["counts"] == {"critical": 1, "warning": 2, "info": 1}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SchemaMissing("x"), "store.schema-missing"),
        (SchemaOutdated("x"), "store.schema-outdated"),
        (SchemaNewer("x"), "store.schema-newer"),
        (SchemaMixed("x"), "store.schema-mixed"),
        (StoreUnavailable("x"), "store.unreachable"),
        (MissingExtra("asyncpg", extra="postgres", needed_for="It"), "store.driver-missing"),
        (ConfigError("x"), "store.unusable"),
        (StoreError("x"), "store.unusable"),
        (ValueError("of a store that is not ours"), "store.unusable"),
    ],
)
def test_a_store_that_cannot_be_opened_is_critical(error: Exception, code: str) -> None:
    found = closed_to(error)

    assert (found.code, found.severity) == (code, Severity.CRITICAL)
    assert str(error) in found.what


def test_something_more_than_expected_is_less_bad_than_something_missing() -> None:
    more = Difference(item="index extra on pillarbox_outbox", problem="unexpected")
    lacking = Difference(item="index pillarbox_outbox_late_idx on pillarbox_outbox", problem="missing")

    assert list(differing([])) == []
    assert [one.severity for one in differing([more])] == [Severity.WARNING]
    assert [one.severity for one in differing([more, lacking])] == [Severity.CRITICAL]
    assert "and 4 more" in next(differing([lacking] * 9)).what


def test_a_slow_answer_is_no_skew() -> None:
    assert list(skew_findings(Skew(seconds(6), seconds(2)))) == []
    assert list(skew_findings(Skew(seconds(-5), seconds(0)))) == []
    assert [one.code for one in skew_findings(Skew(seconds(-6), seconds(0.1)))] == ["store.clock-skew"]
    assert "90 s behind" in next(skew_findings(Skew(seconds(-90), seconds(1)))).what
    assert "90 s ahead of" in next(skew_findings(Skew(seconds(90), seconds(1)))).what


def test_only_open_messages_of_names_that_nobody_knows_are_unserved() -> None:
    counts = [
        count("known", 3), count("lost", 2), count("lost", 1, topic="other", state=State.SENDING),
        count("old", 9, state=State.DELIVERED), count(SKIPPED_DESTINATION, 4), count("many", 50),
    ]  # fmt: skip
    found = list(unserved_findings(counts, known={"known"}, limit=50))

    assert [one.what.split(",")[0] for one in found] == [
        "3 messages wait for the destination lost",
        "50 or more messages wait for the destination many",
    ]


def test_a_pause_says_who_when_why_and_what_waits() -> None:
    pause = Pause(destination="a", by="kim", at=AT, reason="moving house")
    (found,) = pause_findings([pause], counts=[count("a", 1), count("b", 5)], limit=50)

    assert (
        found.what
        == "The destination a is paused since 2026-03-01 12:00 UTC by kim (moving house). 1 message waits for it."
    )
    assert "No messages wait for it" in next(pause_findings([pause], counts=[], limit=50)).what


def test_topics_are_those_that_were_ever_sent() -> None:
    counts = [count("a", 1, topic="x"), count("a", 1, topic="w", state=State.DELIVERED), count("b", 1, topic="y")]

    assert topics_by_destination(counts) == {"a": ["w", "x"], "b": ["y"]}
