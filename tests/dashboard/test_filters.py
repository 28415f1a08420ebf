"""Filters go to the URL, to the store and to the command line, and come back from the URL as they were."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.cli.messages import messages
from pillarbox.contracts.store import Selection
from pillarbox.dashboard import filters as filters_module
from pillarbox.dashboard.filters import (
    FilterError,
    Filters,
    list_chips,
    parse_filters,
    parse_message_name,
    parse_search,
    to_flags,
    to_query,
    to_selection,
)
from pillarbox.message import State

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEXT = st.text(min_size=1, max_size=50).map(str.strip).filter(bool)


@given(
    st.builds(
        Filters,
        state=st.none() | st.sampled_from([one.value for one in State]),
        destination=st.none() | TEXT,
        topic=st.none() | TEXT,
        key=st.none() | TEXT,
        error=st.none() | TEXT,
        fingerprint=st.none() | TEXT,
        since=st.none() | st.sampled_from(["2h", "2026-01-31T10:00:00+00:00"]),
        attempts=st.none() | st.integers(0, 99),
        ids=st.lists(st.integers(1, 2**62), unique=True, max_size=5).map(tuple),
    )
)
def test_filters_survive_the_url(filters: Filters) -> None:
    assert parse_filters(dict(parse_qsl(to_query(filters)))) == filters


def test_filters_select_in_the_store() -> None:
    filters = Filters(state="failed", destination="billing", error="422", since="2h", attempts=3, fingerprint="f")

    assert to_selection(filters, now=NOW) == Selection(
        states=[State.FAILED],
        destination="billing",
        error="422",
        since=NOW - timedelta(hours=2),
        min_attempts=3,
        fingerprint="f",
    )


def test_filters_are_flags_that_a_shell_takes() -> None:
    assert (
        to_flags(Filters(destination="billing", error="it's down"))
        == """--destination billing --error 'it'"'"'s down'"""
    )
    assert to_flags(Filters(ids=(4, 7))) == "4 7"


def test_a_chip_takes_its_filter_away() -> None:
    chips = list_chips(Filters(state="failed", topic="orders", ids=(1,)))

    assert [(name, value) for name, value, _ in chips] == [("topic", "orders"), ("ids", "1")]
    assert chips[0][2] == Filters(state="failed", ids=(1,))
    assert chips[1][2] == Filters(state="failed", topic="orders")


@pytest.mark.parametrize(
    "query",
    [
        {"state": "lost"},
        {"since": "soon"},
        {"until": "1 fortnight"},
        {"attempts": "-1"},
        {"attempts": "many"},
        {"ids": "1,x"},
        {"ids": "9" * 20},
        {"ids": ",".join(map(str, range(1_001)))},
        {"key": "k" * 3_000},
    ],
)
def test_a_filter_that_nobody_can_mean_is_a_sentence(query: dict[str, str]) -> None:
    with pytest.raises(FilterError, match=r"\.$"):
        parse_filters(query)


@pytest.mark.parametrize(
    ("text", "filters", "words"),
    [
        ("4711", Filters(), "4711"),
        ('dest:billing error:"no account"', Filters(destination="billing", error="no account"), ""),
        ("state:failed since:2h order-42", Filters(state="failed", since="2h"), "order-42"),
        ("https://x", Filters(), "https://x"),
        ('say "half', Filters(), 'say "half'),
        ("", Filters(), ""),
    ],
)
def test_a_search_has_qualifiers_and_words(text: str, filters: Filters, words: str) -> None:
    found = parse_search(text)

    assert (found.filters, found.words) == (filters, words)


def test_a_message_has_two_names() -> None:
    assert parse_message_name("42") == Selection(ids=[42])
    assert parse_message_name("00000000-0000-0000-0000-000000000001") == Selection(message_ids=[UUID(int=1)])
    for text in ("order-42", "", "4²", "9" * 30):
        assert parse_message_name(text) is None


def test_the_command_that_does_the_same_has_every_filter() -> None:
    values = {
        "state": "failed", "phase": "held", "destination": "billing", "topic": "orders", "type": "orders.placed",
        "key": "it's", "correlation": "c", "error": "no account", "fingerprint": "answered #", "since": "2h",
        "until": "30m", "attempts": "4", "ids": "4,7",
    }  # fmt: skip
    filters = parse_filters(values)
    assert set(values) == set(filters.__struct_fields__), "a new filter needs a flag of the command"

    words = shlex.split(to_flags(filters))
    assert words[:2] == ["4", "7"]
    assert dict(zip(words[2::2], words[3::2], strict=True)) == {
        "--state": "failed", "--phase": "held", "--destination": "billing", "--topic": "orders",
        "--type": "orders.placed", "--key": "it's", "--correlation": "c", "--error": "no account",
        "--fingerprint": "answered #", "--since": "2h", "--until": "30m", "--min-attempts": "4",
    }  # fmt: skip


def test_the_command_takes_the_flags_that_the_page_writes() -> None:
    known = {name for option in messages.commands["discard"].params for name in option.opts}
    assert {flag for name, flag in filters_module._FLAGS.items() if name != "phase"} <= known
