"""Correlation, causation and trace follow the code that runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import correlation, handling, trace
from pillarbox.cloudevents import CloudEvent
from pillarbox.context import Context, current, trace_headers
from pillarbox.errors import PublishError

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"


def handled(**headers: str) -> CloudEvent:
    return CloudEvent(
        message_id="cause",
        source="/s",
        type="t",
        topic="t",
        correlation_id="chain",
        headers=headers,
        causation_id="before",
    )


def test_there_is_no_context_by_default() -> None:
    assert current() == Context()
    assert trace_headers(current()) == {}


def test_contexts_nest_and_end() -> None:
    with correlation("outer"):
        with trace(PARENT, "a=1"), correlation("inner"):
            assert current() == Context(correlation_id="inner", traceparent=PARENT, tracestate="a=1")
        assert current() == Context(correlation_id="outer")
    assert current() == Context()


def test_a_context_ends_with_an_error_too() -> None:
    with pytest.raises(RuntimeError), correlation("outer"):
        raise RuntimeError
    assert current() == Context()


def test_handling_makes_the_message_the_cause_and_carries_its_chain_and_trace() -> None:
    with correlation("elsewhere"), trace(OTHER), handling(handled(traceparent=PARENT, tracestate="a=1", other="x")):
        assert current() == Context(correlation_id="chain", causation_id="cause", traceparent=PARENT, tracestate="a=1")


def test_handling_a_message_without_a_trace_does_not_go_on_with_another() -> None:
    with trace(OTHER), handling(handled()):
        assert trace_headers(current()) == {}


@pytest.mark.parametrize("bad", ["", "bell\a", "x" * 1025, None])
def test_a_correlation_id_must_be_usable(bad: Any) -> None:
    with pytest.raises(PublishError, match="correlation id"), correlation(bad):
        pytest.fail("entered")


async def test_tasks_inherit_and_do_not_leak() -> None:
    async def inside(name: str) -> str | None:
        with correlation(name):
            await asyncio.sleep(0)
            return current().correlation_id

    with correlation("request"):
        found = await asyncio.gather(*(inside(str(number)) for number in range(5)))
        inherited = await asyncio.create_task(asyncio.sleep(0, current().correlation_id))
        assert current().correlation_id == "request"
    assert found == ["0", "1", "2", "3", "4"]
    assert inherited == "request"


def test_a_new_thread_starts_with_none() -> None:
    found: list[Context] = []
    with correlation("request"):
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
    assert found == [Context()]


GOOD_PARENTS = [
    PARENT,
    "00-" + "f" * 32 + "-" + "f" * 16 + "-00",
    "cc-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "cc-" + "a" * 32 + "-" + "b" * 16 + "-01-what-the-future-brings",
]
BAD_PARENTS = [
    None,
    "",
    5,
    "00",
    PARENT.upper(),
    PARENT + "-extra",
    PARENT + " ",
    PARENT + "\n",
    " " + PARENT,
    "ff" + PARENT[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
    "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
    "cc-" + "a" * 32 + "-" + "b" * 16 + "-01.what",
]


@pytest.mark.parametrize("parent", GOOD_PARENTS)
def test_valid_trace_parents_are_carried(parent: str) -> None:
    with trace(parent):
        assert trace_headers(current()) == {"traceparent": parent}


@pytest.mark.parametrize("parent", BAD_PARENTS)
def test_a_malformed_trace_parent_is_ignored_with_its_state(parent: Any) -> None:
    with trace(parent, "a=1"):
        assert trace_headers(current()) == {}
    with trace(OTHER, "b=2"), trace(parent, "a=1"):
        assert trace_headers(current()) == {"traceparent": OTHER, "tracestate": "b=2"}
    with handling(handled(traceparent=str(parent), tracestate="a=1")):
        assert trace_headers(current()) == {}


@pytest.mark.parametrize(
    "state", ["a=1", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "a=1, b=2", "0tenant@sys=x", "a=1,,b=2", "a/b*_-=~!"]
)
def test_valid_trace_states_are_carried(state: str) -> None:
    with trace(PARENT, state):
        assert trace_headers(current()) == {"traceparent": PARENT, "tracestate": state}


@pytest.mark.parametrize(
    "state",
    [
        "",
        " ",
        "novalue",
        "A=1",
        "a=b=c",
        "a=ö",
        "a=1\n",
        "a=\x00",
        5,
        ",".join(f"k{n}=v" for n in range(33)),
        "a=" + "x" * 257,
    ],
)
def test_a_malformed_trace_state_is_dropped_alone(state: Any) -> None:
    with trace(PARENT, state):
        assert trace_headers(current()) == {"traceparent": PARENT}


@given(st.text(), st.text())
def test_no_trace_context_ever_raises(parent: str, state: str) -> None:
    with trace(parent, state), trace(PARENT, state):
        assert trace_headers(current())["traceparent"] == PARENT


def test_a_current_opentelemetry_span_comes_first() -> None:
    api = pytest.importorskip("opentelemetry.trace")
    span = api.NonRecordingSpan(
        api.SpanContext(
            trace_id=0x0AF7651916CD43DD8448EB211C80319C,
            span_id=0xB7AD6B7169203331,
            is_remote=False,
            trace_flags=api.TraceFlags(1),
            trace_state=api.TraceState([("a", "1")]),
        )
    )
    with trace(OTHER):
        assert trace_headers(current()) == {"traceparent": OTHER}
        with api.use_span(span):
            assert trace_headers(current()) == {"traceparent": PARENT, "tracestate": "a=1"}
        assert trace_headers(current()) == {"traceparent": OTHER}
