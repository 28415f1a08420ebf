"""Decisions that need no store: what an action may do, a message's timeline, charts, chains, texts."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Action, InboxRecord, JournalEntry, Pause, RelayInfo, Rollup
from pillarbox.dashboard.access import Role
from pillarbox.dashboard.actions import ACTIONS, FormError, Order, Verb, describe_command, list_allowed, parse_order
from pillarbox.dashboard.activity import to_csv
from pillarbox.dashboard.chains import SeenMessage, build_chain, place_bars, summarize_chains, walk
from pillarbox.dashboard.charts import WINDOWS, build_chart, draw_sparkline, list_backlogs, list_bands
from pillarbox.dashboard.filters import Filters
from pillarbox.dashboard.formatting import (
    MOST_SHOWN,
    describe_retry,
    format_bytes,
    format_payload,
    hide_headers,
    hide_texts,
    name_relays,
)
from pillarbox.dashboard.messages import build_timeline
from pillarbox.message import Message, State, Waits
from pillarbox.operations.documents import to_message_document
from pillarbox.retry import RetryPolicy
from pillarbox.testing.samples import sample

NOW = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def stored(state: State = State.PENDING, **more: object) -> Message:
    return replace(sample(), id=7, state=state, created_at=NOW - MINUTE, status_at=NOW, **more)


# --- actions ---


@pytest.mark.parametrize(
    ("message", "allowed"),
    [
        (stored(State.PENDING), {Verb.DEFER, Verb.DISCARD}),
        (stored(State.SENDING), set()),
        (stored(State.DELIVERED), {Verb.REPLAY}),
        (stored(State.DELIVERED, payload_kept=False), set()),
        (stored(State.FAILED), {Verb.REDRIVE, Verb.DISCARD}),
        (stored(State.FAILED, unreadable="no type"), {Verb.DISCARD}),
        (stored(State.DISCARDED), {Verb.REDRIVE}),
        (stored(State.SKIPPED), {Verb.REDRIVE, Verb.DISCARD}),
    ],
)
def test_a_state_allows_some_actions_and_the_others_say_why_not(message: Message, allowed: set[Verb]) -> None:
    found = list_allowed(message, role=Role.OWNER, read_only=False)

    assert {one.rule.verb for one in found if one.refusal is None} == allowed
    assert all(one.refusal is None or one.refusal.endswith(".") for one in found)


def test_a_role_and_read_only_refuse_whatever_the_state_is() -> None:
    failed = stored(State.FAILED)

    assert all(
        one.refusal == "This dashboard is read-only." for one in list_allowed(failed, role=Role.OWNER, read_only=True)
    )
    refusals = {one.rule.verb: one.refusal for one in list_allowed(failed, role=Role.OPERATOR, read_only=False)}
    assert refusals[Verb.REDRIVE] is None
    assert refusals[Verb.DISCARD] == "This needs the role owner; yours is operator."


def test_every_action_has_its_command() -> None:
    filters = Filters(destination="billing", error="no account")

    assert describe_command(filters, Order(verb=Verb.REDRIVE)) == (
        "pillarbox messages redrive --destination billing --error 'no account'"
    )
    assert describe_command(Filters(ids=(7,)), Order(verb=Verb.DISCARD, reason="by hand")) == (
        "pillarbox messages discard --reason 'by hand' 7"
    )
    assert "--for 2h" in describe_command(filters, Order(verb=Verb.DEFER, until="2h"))


def test_a_form_is_read_or_says_what_is_missing() -> None:
    assert parse_order(Verb.REDRIVE, {"to": "billing", "reason": " a  b "}, total=3) == Order(
        verb=Verb.REDRIVE, to="billing", reason="a b"
    )
    for verb, form, total in (
        (Verb.DISCARD, {}, 1),
        (Verb.DISCARD, {"reason": "x" * 501}, 1),
        (Verb.DEFER, {}, 1),
        (Verb.DEFER, {"for": "-1h"}, 1),
        (Verb.DEFER, {"for": "2020-01-01"}, 1),
        (Verb.REDRIVE, {}, 1_001),
        (Verb.REDRIVE, {"typed": "1000"}, 1_001),
    ):
        with pytest.raises(FormError):
            parse_order(verb, form, total=total)
    assert set(ACTIONS) == set(Verb)


# --- timeline ---


def entry(action: Action, minutes: int = 0, **more: object) -> JournalEntry:
    values = {"message_id": UUID(int=1), "destination": "orders", "by": "ann"} | more
    return JournalEntry(action=action, at=NOW + MINUTE * minutes, **values)  # type: ignore[arg-type]


def test_a_timeline_says_what_happened_where_it_is_and_what_can_follow() -> None:
    journal = [
        entry(Action.ATTEMPT_FAILED, 1, error="503"),
        entry(Action.ATTEMPT_FAILED, 2, error="503"),
        entry(Action.FAILED, 3),
        entry(Action.REDRIVEN, 4),
    ]

    steps = build_timeline(stored(State.DELIVERED), journal, NOW)
    assert [(step.name, step.kind, step.times) for step in steps] == [
        ("written", "done", 1),
        ("attempt failed", "bad", 2),
        ("failed", "bad", 1),
        ("redriven", "person", 1),
        ("delivered", "now", 1),
    ]
    held = build_timeline(stored(State.FAILED, waits=Waits.HELD), [entry(Action.HELD)], NOW)
    assert [(step.name, step.kind) for step in held[1:]] == [
        ("held", "now"),
        ("redrive", "choice"),
        ("discard", "choice"),
    ]
    due = build_timeline(stored(available_at=NOW + MINUTE, waits=Waits.DEFERRED), [], NOW)
    assert [(step.name, step.kind) for step in due] == [
        ("written", "done"),
        ("due", "next"),
        ("pending", "now"),
        ("sending", "next"),
        ("delivered", "next"),
    ]
    assert due[2].detail == "due in 1m"


# --- charts ---


def test_a_chart_has_a_value_for_every_point_of_time() -> None:
    minute = NOW.replace(second=0)
    latencies = [0, 0, 8, *[0] * 13]
    rollups = [
        Rollup(
            destination="billing",
            minute=minute - MINUTE,
            delivered=8,
            retried=1,
            latency_sum=0.1,
            latency_max=0.02,
            latencies=latencies,
            backlog=5,
        ),
        Rollup(destination="mail", minute=minute - MINUTE, failed=2, backlog=1),
    ]
    chart = build_chart(rollups, now=NOW, window=WINDOWS["15m"])

    assert {len(chart[name]) for name in ("times", "delivered", "failed", "retried", "p50", "p99")} == {15}  # type: ignore[arg-type]
    assert chart["delivered"][-3:] == [None, 8, None]  # type: ignore[index]
    assert chart["failed"][-3:] == [None, 2, None]  # type: ignore[index]
    assert chart["p50"][-3] is None  # type: ignore[index]
    assert 0.01 <= chart["p99"][-2] <= 0.025  # type: ignore[index]
    assert chart["backlog"]["billing"][-3:] == [None, 5, None]  # type: ignore[index]


@pytest.mark.parametrize("name", WINDOWS)
def test_every_window_covers_its_length(name: str) -> None:
    window = WINDOWS[name]
    times = build_chart([], now=NOW, window=window)["times"]

    assert times[-1] <= NOW.timestamp() < times[-1] + window.step.total_seconds()  # type: ignore[index]
    assert len(times) * window.step == window.length  # type: ignore[arg-type]


def test_bands_are_pauses_and_outages_that_touch_the_window() -> None:
    journal = [
        entry(Action.OUTAGE, -50, error="refused"),
        entry(Action.OUTAGE, -49, error="later"),
        entry(Action.RECOVERED, -40),
        entry(Action.PAUSED, -30, reason="they move"),
        entry(Action.RESUMED, -20),
        entry(Action.PAUSED, -5),
        entry(Action.OUTAGE, -1, destination="mail"),
        entry(Action.RESUMED, -100),
    ]
    pause = Pause(destination="orders", by="bob", at=NOW - 5 * MINUTE, reason="again")

    bands = list_bands(journal, since=NOW - 45 * MINUTE, pauses=[pause])
    assert [(one.destination, one.kind, one.end is None, one.reason) for one in bands] == [
        ("orders", "outage", False, "refused"),
        ("orders", "pause", False, "they move"),
        ("orders", "pause", True, "again"),
        ("mail", "outage", True, ""),
    ]
    assert list_bands(journal[:3], since=NOW - 35 * MINUTE) == []


def test_an_outage_lasts_until_its_last_reporter_says_or_shows_its_end() -> None:
    """A relay that died, or lost its lease, never wrote that the destination recovered: the band stood for weeks."""
    journal = [
        entry(Action.OUTAGE, -50, by="relay-1"),
        entry(Action.OUTAGE, -49, by="relay-2"),
        entry(Action.RECOVERED, -48, by="relay-3"),
        entry(Action.RECOVERED, -47, by="relay-2"),
        entry(Action.TOOK_OVER, -45, by="relay-3", detail="3 lanes of relay relay-4, relay-5"),
        entry(Action.TOOK_OVER, -44, by="relay-3", detail="3 lanes of relay relay-1", destination="mail"),
        entry(Action.TOOK_OVER, -40, by="relay-3", detail="3 lanes of relay relay-1"),
    ]
    (lasts,) = list_bands(journal[:-1], since=NOW - 60 * MINUTE)
    (ended,) = list_bands(journal, since=NOW - 60 * MINUTE)
    assert (lasts.end, ended.end) == (None, NOW - 40 * MINUTE)


def test_a_sparkline_reaches_from_the_bottom_to_the_top() -> None:
    assert draw_sparkline([0, 5, 10], width=100, height=22) == ["0.0,21.0 50.0,11.0 100.0,1.0"]
    assert draw_sparkline([], width=100, height=22) == []
    assert draw_sparkline([0, 0], width=10, height=10) == ["0.0,9.0 10.0,9.0"]


def test_a_sparkline_has_no_line_where_there_are_no_data() -> None:
    assert draw_sparkline([None, 4, None, None, 4, 4], width=50, height=10) == [
        "10.0,1.0 10.0,1.0",
        "40.0,1.0 50.0,1.0",
    ]
    assert draw_sparkline([None, None], width=50, height=10) == []


@pytest.mark.parametrize(
    ("running", "known"),
    [
        ({"billing": 7, "mail": 0}, {"billing": 7, "mail": 0}),
        ({"billing": 0, "mail": 0}, {"billing": None, "mail": None}),
        ({"mail": 0}, {"billing": None, "mail": None}),
    ],
    ids=["seen", "not-looked-yet", "no-row-yet"],
)
def test_backlogs_of_the_running_step_are_known_for_all_destinations_or_for_none(
    running: dict[str, int], known: dict[str, int | None]
) -> None:
    minute = NOW.replace(second=0)
    rollups = [Rollup(minute=minute - MINUTE, destination=name, backlog=n) for name, n in (("billing", 5), ("mail", 0))]
    rollups += [Rollup(minute=minute, destination=name, backlog=n) for name, n in running.items()]

    chart = build_chart(rollups, now=NOW, window=WINDOWS["1h"])
    assert {name: values[-1] for name, values in chart["backlog"].items()} == known  # type: ignore[attr-defined]


def test_a_backlog_of_nothing_is_not_known_in_the_first_step_of_a_destination() -> None:
    rollups = [Rollup(minute=NOW.replace(second=0), destination="billing", backlog=0)]
    gone = [Rollup(minute=NOW.replace(second=0) - 20 * MINUTE, destination="gone", backlog=4)]
    kept = [Rollup(minute=NOW.replace(second=0) - n * MINUTE, destination="mail", backlog=0) for n in (0, 1)]

    def find_last(*found: Rollup) -> dict[str, int | None]:
        chart: Any = build_chart(found, now=NOW, window=WINDOWS["1h"])
        return {name: values[-1] for name, values in chart["backlog"].items()}

    assert find_last(*rollups) == {"billing": None}
    assert find_last(*gone, *kept) == {"gone": None, "mail": 0}


def test_the_backlog_of_a_minute_without_a_row_is_unknown() -> None:
    rollups = [Rollup(minute=NOW.replace(second=0) - n * MINUTE, destination="billing", backlog=n) for n in (1, 4)]

    found = list_backlogs(rollups, now=NOW, window=WINDOWS["15m"])["billing"]
    assert found == [*[None] * 10, 4, None, None, 1, None]


# --- chains ---


def seen(
    number: int, *, cause: int | None = None, at: int = 0, state: State = State.DELIVERED, store: str = "a"
) -> SeenMessage:
    message = sample(
        message_id=UUID(int=number),
        causation_id=None if cause is None else str(UUID(int=cause)),
        event_time=NOW + at * MINUTE,
    )
    created = NOW + at * MINUTE
    return SeenMessage(store, replace(message, id=number, state=state, created_at=created, status_at=created + MINUTE))


def test_a_chain_is_a_tree_by_causes_over_stores() -> None:
    chain = build_chain(
        [seen(3, cause=2, at=4, store="b"), seen(1), seen(2, cause=1, at=2), seen(4, cause=9)], {}, now=NOW
    )

    assert [(depth, UUID(node.message_id).int, node.is_seen) for depth, node in walk(chain)] == [
        (0, 1, True),
        (1, 2, True),
        (2, 3, True),
        (0, 9, False),
        (1, 4, True),
    ]
    assert (chain.messages, chain.unseen) == (4, 1)


def test_causes_that_go_round_end_somewhere() -> None:
    chain = build_chain([seen(1, cause=2), seen(2, cause=1), seen(3, cause=3)], {}, now=NOW)

    assert {UUID(node.message_id).int for _, node in walk(chain)} == {1, 2, 3}


def test_a_hop_has_three_segments_where_all_is_known() -> None:
    handled = InboxRecord(
        consumer="billing",
        source="/shop",
        message_id=str(UUID(int=1)),
        status="done",
        at=NOW + 4 * MINUTE,
        attempts=1,
        error=None,
    )
    chain = build_chain([seen(1), seen(2, cause=1, at=3)], {"b": [handled]}, now=NOW + 5 * MINUTE)
    hop = chain.roots[0].hops[0]

    bars = place_bars(hop, chain, now=NOW + 5 * MINUTE)
    assert [(bar.kind, bar.seconds) for bar in bars] == [("outbox", 60.0), ("transport", 120.0), ("handling", 60.0)]
    assert bars[0].x == 0
    assert all(0 <= bar.x <= 1 and bar.x + bar.width <= 1.00001 for bar in bars)
    waiting = build_chain([seen(1, state=State.PENDING)], {}, now=NOW + 5 * MINUTE)
    assert [bar.seconds for bar in place_bars(waiting.roots[0].hops[0], waiting, now=NOW + 5 * MINUTE)] == [300.0]


def test_a_chain_stops_where_something_failed() -> None:
    failed = InboxRecord(
        consumer="billing", source="/shop", message_id=str(UUID(int=1)), status="failed", at=NOW, attempts=3, error="no"
    )

    assert build_chain([seen(1)], {"a": [failed]}, now=NOW).roots[0].hops[0].is_stopped
    assert build_chain([seen(1, state=State.FAILED)], {}, now=NOW).roots[0].hops[0].is_stopped
    assert not build_chain([seen(1)], {}, now=NOW).roots[0].hops[0].is_stopped


def test_chains_are_summarized_with_the_latest_first() -> None:
    def of(number: int, chain: str, at: int, state: State = State.DELIVERED, store: str = "a") -> SeenMessage:
        one = seen(number, at=at, state=state, store=store)
        return SeenMessage(store, replace(one.message, correlation_id=chain, type=f"type-{number}"))

    chains = summarize_chains(
        [
            of(2, "slow", -9), of(1, "slow", -30, store="b"), of(3, "quick", -8), of(4, "open", -20, State.PENDING),
            of(5, "bad", -40, State.FAILED),
        ],
        now=NOW,
    )  # fmt: skip

    assert [(one.correlation_id, one.type, one.messages, one.length // MINUTE) for one in chains] == [
        ("quick", "type-3", 1, 1), ("open", "type-4", 1, 20), ("slow", "type-1", 2, 22), ("bad", "type-5", 1, 1),
    ]  # fmt: skip
    assert [(one.is_open, one.is_stopped) for one in chains] == [
        (False, False), (True, False), (False, False), (False, True),
    ]  # fmt: skip
    assert chains[2].stores == ["a", "b"]


# --- texts ---


def test_relays_are_named_by_service_host_and_process() -> None:
    relay = RelayInfo(
        relay_id=UUID(int=7), service="shop", host="web-1", pid=42, version="1", destinations=[], reachable=[]
    )

    assert name_relays(f"3 lanes of relay {UUID(int=7)}", [relay]) == "3 lanes of shop@web-1:42"
    assert name_relays(str(UUID(int=8 << 96)), [relay]) == "relay 00000008…"
    assert name_relays("ann", [relay]) == "ann"


def test_numbers_of_a_payload_stay_as_they_were_written() -> None:
    text = format_payload(
        b'{"id": 12345678901234567890, "price": 1.10, "list": [1e3, true, null, "\\u00e9"]}', "application/json"
    )

    assert '"id": 12345678901234567890' in text
    assert '"price": 1.10' in text
    assert "1e3" in text
    assert '"é"' in text
    assert format_payload(b"{broken", "application/json") == "{broken"
    assert format_payload(b"\xff\x1b[31m", "text/plain") == "\\xff\\x1b[31m"


def test_headers_with_secret_names_are_hidden() -> None:
    assert hide_headers({"X-Api-Token": "abc", "tenant": "acme", "note": "password=hunter2"}) == {
        "X-Api-Token": "***",
        "tenant": "acme",
        "note": "password=***",
    }
    assert hide_texts({"payload": "password=a", "deep": [{"error": "password=a", "headers": {"cookie": "x"}}]}) == {
        "payload": "password=a",
        "deep": [{"error": "password=***", "headers": {"cookie": "***"}}],
    }


def test_a_retry_policy_is_said_in_words() -> None:
    assert describe_retry(RetryPolicy(attempts=4)) == "4 attempts, with waits of 2s, 4s, 8s"
    assert describe_retry(RetryPolicy(attempts=1)) == "tried once"
    assert describe_retry(RetryPolicy(attempts=None)).startswith("tried for ever")


def test_sizes_have_units() -> None:
    assert [format_bytes(size) for size in (None, 12, 2048, 5 * 2**30)] == ["–", "12 B", "2.0 KiB", "5.0 GiB"]


def test_a_spreadsheet_takes_no_text_for_a_formula() -> None:
    table = to_csv([entry(Action.PAUSED, by="=cmd|' /C calc'!A0", reason="-1")])

    assert "'=cmd" in table
    assert ",'-1," in table


@pytest.mark.parametrize(
    "text", ["=1+1", " =1+1", ";=1+1", "x;=1+1", 'x;"=1+1"', "a,+1", "a|@sum", "a\n-1", "x; ＝1+1", "\t=1"]
)
def test_no_formula_begins_where_another_separator_would_split_a_cell(text: str) -> None:
    table = to_csv([entry(Action.PAUSED, by="ann", reason=text)])

    assert re.search(r"[;,|\n\t\"] *[=+@＝-]", table) is None, table


def test_a_long_text_of_separators_is_written_in_linear_time() -> None:
    for text in ("\n" * 200_000, '; "' * 100_000, " " * 200_000):
        assert "'" not in to_csv([entry(Action.PAUSED, by="ann", reason=text)])


def test_dashes_and_plus_signs_within_a_text_stay_as_they_are() -> None:
    assert "2026-01-31 12:00:30+00:00" in to_csv([entry(Action.PAUSED, by="ann")])
    assert "a well-known cause, e.g. 1+1" in to_csv([entry(Action.PAUSED, reason="a well-known cause, e.g. 1+1")])


def test_no_value_of_a_payload_is_hidden_by_another_one_of_its_name() -> None:
    payload = b'{"total": 1, "more": {"total": 10, "total": 99}}'

    assert format_payload(payload, "application/json") == payload.decode()


def test_a_large_payload_is_cut_before_it_is_read() -> None:
    largest = b"[" + b"1," * (MOST_SHOWN // 2 - 1) + b"1]"
    assert len(largest) > MOST_SHOWN
    assert format_payload(largest, "application/json") == largest[:MOST_SHOWN].decode() + "…"
    split = b"x" * (MOST_SHOWN - 1) + "é".encode() * 2
    assert format_payload(split, "text/plain") == "x" * (MOST_SHOWN - 1) + "…"


def test_a_deep_payload_is_shown_as_it_was_sent_and_never_longer_than_the_page_allows() -> None:
    deepest = b"[" * 20_000 + b"]" * 20_000
    assert format_payload(deepest, "application/json") == deepest.decode()
    wide = b"[" * 400 + b"1," * 50_000 + b"1" + b"]" * 400
    assert len(format_payload(wide, "application/json")) == MOST_SHOWN + 1


@pytest.mark.parametrize("depth", [101, 985, 20_000])
def test_documents_have_a_deep_payload_in_base64(depth: int) -> None:
    payload = b'{"a":' * depth + b'"[["' + b"}" * depth
    document = to_message_document(stored(payload=payload), payload=True)

    assert document["payload_base64"] == base64.b64encode(payload).decode()
    assert "payload" not in document
    flat = b'{"text":"' + b"[" * 200 + b'\\"[", "list":[' + b"{}," * 200 + b"{}]}"
    assert to_message_document(stored(payload=flat), payload=True)["payload"] == msgspec.json.decode(flat)
