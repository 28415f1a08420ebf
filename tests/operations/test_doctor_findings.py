"""What the doctor makes of what was seen. Pure: the real thing is in the other files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from pillarbox.cli._errors import to_exit_code
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.store import Count, Pause
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
from pillarbox.operations.doctor import (
    Report,
    build_examination,
    format_report,
    group_topics,
    summarize,
    to_document,
)
from pillarbox.operations.findings import (
    ClockSkew,
    find_clock_skew,
    find_pauses,
    find_schema_differences,
    find_unserved_destinations,
    report_unusable_store,
)
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
    parts = [
        build_examination("store", "x", []),
        build_examination("destination a", "y", [finding("a.a", one) for one in severities]),
    ]

    assert Report(parts).worst is worst
    assert to_exit_code(Report(parts).worst) == code


def test_the_worst_comes_first() -> None:
    found = [finding("b", Severity.INFO), finding("z", Severity.CRITICAL), finding("a", Severity.WARNING),
             finding("c", Severity.CRITICAL)]  # fmt: skip

    assert [one.code for one in build_examination("store", "x", found).findings] == ["c", "z", "a", "b"]


def test_what_a_broker_wrote_is_on_one_line_and_without_secrets() -> None:
    nasty = finding("a.a", Severity.INFO, what="refused\x1b[31m by\namqp://guest:c4nary@host/ password=c4nary2")
    (clean,) = build_examination("store", "x", [nasty]).findings

    assert clean.what == "refused [31m by amqp://guest:***@host/ password=***"


def test_the_text_says_what_why_and_how_to_mend_it() -> None:
    parts = [
        build_examination("store", "sqlite:///a.db", []),
        build_examination("destination b", "memory:", [finding("b.b", Severity.WARNING)]),
    ]
    text = format_report(Report(parts))

    assert text.splitlines() == [
        "store (sqlite:///a.db)", "  fine", "",
        "destination b (memory:)", "  WARNING b.b", "    what it is so", "    why  because", "    fix  do this", "",
        "1 warning.",
    ]  # fmt: skip


def test_the_sum_counts_each_kind_and_programs_get_the_same() -> None:
    report = Report([build_examination("store", "x", [finding("a", one) for one in (*Severity, Severity.WARNING)])])

    assert summarize(report) == "1 critical, 2 warnings, 1 note"
    assert summarize(Report([])) == "All is well"
    assert msgspec.to_builtins(to_document(report))["counts"] == {"critical": 1, "warning": 2, "info": 1}


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
    found = report_unusable_store(error)

    assert (found.code, found.severity) == (code, Severity.CRITICAL)
    assert str(error) in found.what


def test_something_more_than_expected_is_less_bad_than_something_missing() -> None:
    more = Difference(item="index extra on pillarbox_outbox", problem="unexpected")
    lacking = Difference(item="index pillarbox_outbox_late_idx on pillarbox_outbox", problem="missing")

    assert list(find_schema_differences([])) == []
    assert [one.severity for one in find_schema_differences([more])] == [Severity.WARNING]
    assert [one.severity for one in find_schema_differences([more, lacking])] == [Severity.CRITICAL]
    assert "and 4 more" in next(find_schema_differences([lacking] * 9)).what


def test_a_slow_answer_is_no_skew() -> None:
    assert list(find_clock_skew(ClockSkew(seconds(6), seconds(2)))) == []
    assert list(find_clock_skew(ClockSkew(seconds(-5), seconds(0)))) == []
    assert [one.code for one in find_clock_skew(ClockSkew(seconds(-6), seconds(0.1)))] == ["store.clock-skew"]
    assert "90 s behind" in next(find_clock_skew(ClockSkew(seconds(-90), seconds(1)))).what
    assert "90 s ahead of" in next(find_clock_skew(ClockSkew(seconds(90), seconds(1)))).what


def test_only_open_messages_of_names_that_nobody_knows_are_unserved() -> None:
    counts = [
        count("known", 3), count("lost", 2), count("lost", 1, topic="other", state=State.SENDING),
        count("old", 9, state=State.DELIVERED), count(SKIPPED_DESTINATION, 4), count("many", 50),
    ]  # fmt: skip
    found = list(find_unserved_destinations(counts, known={"known"}, limit=50))

    assert [one.what.split(",")[0] for one in found] == [
        "3 messages wait for the destination lost",
        "50 or more messages wait for the destination many",
    ]


def test_a_pause_says_who_when_why_and_what_waits() -> None:
    pause = Pause(destination="a", by="kim", at=AT, reason="moving house")
    (found,) = find_pauses([pause], counts=[count("a", 1), count("b", 5)], limit=50)

    assert (
        found.what
        == "The destination a is paused since 2026-03-01 12:00 UTC by kim (moving house). 1 message waits for it."
    )
    assert "No messages wait for it" in next(find_pauses([pause], counts=[], limit=50)).what


def test_topics_are_those_that_were_ever_sent() -> None:
    counts = [count("a", 1, topic="x"), count("a", 1, topic="w", state=State.DELIVERED), count("b", 1, topic="y")]

    assert group_topics(counts) == {"a": ["w", "x"], "b": ["y"]}
