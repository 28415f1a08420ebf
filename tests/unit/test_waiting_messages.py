"""Messages that were tried and are not given up, as the status, the alerts and the commands show them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from pillarbox.cli._output import format_tries
from pillarbox.clock import FrozenClock
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import Action, Claim, FailedOutcome, JournalEntry, Selection, Settlement, Tries
from pillarbox.message import State, Waits
from pillarbox.operations.alerts import Thresholds, find_alerts
from pillarbox.operations.monitor import Monitor, count_tries
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.lanes.destination_bench import LEASE, SINK, build_state, grant, put


async def tried_store(clock: FrozenClock, *outcomes: FailedOutcome) -> MemoryStore:
    """A store with two messages, the first of which had these outcomes."""
    store = MemoryStore(clock=clock)
    put(store, "a", "b")
    state = build_state(store, clock)
    await grant(state, 0)
    for number, outcome in enumerate(outcomes, start=1):
        await store.claim(state.fence([0]), Claim(number, [1]))
        await store.settle(state.fence([0]), Settlement(failures=[outcome], finished=[number]))
        clock.advance(timedelta(0) if outcome.delay is None else outcome.delay)
    return store


def outcome(*, attempts: int = 0, spends: bool = False, tried: bool = True) -> FailedOutcome:
    return FailedOutcome(
        message_id=1, state=State.PENDING, waits=Waits.RETRY, attempts=attempts, error="no queue is bound",
        delay=timedelta(seconds=1), spends=spends, tried=tried,
    )  # fmt: skip


async def test_the_status_says_how_often_a_message_was_tried_and_why_it_failed() -> None:
    clock = FrozenClock()
    store = await tried_store(clock, *[outcome()] * 7)
    (waiting,) = (await Monitor(store, lease=LEASE).status()).waiting
    assert (waiting.destination, waiting.topic, waiting.error) == (SINK, "t", "no queue is bound")
    assert (waiting.count, waiting.more, waiting.oldest_id, waiting.tries) == (1, False, 1, 7)


async def test_a_message_that_waits_unsent_for_its_address_is_shown_too() -> None:
    store = await tried_store(FrozenClock(), outcome(tried=False))
    (waiting,) = (await Monitor(store, lease=LEASE).status()).waiting
    assert waiting.tries == 0
    (found,) = await store.find(Selection(states=[State.PENDING], tried=True), limit=10)
    assert await store.journal(message_id=found.message_id) == []


async def test_an_ordinary_retry_is_not() -> None:
    store = await tried_store(FrozenClock(), outcome(), outcome(attempts=1, spends=True))
    assert (await Monitor(store, lease=LEASE).status()).waiting == []


@pytest.mark.parametrize(
    ("age", "severity"), [(30, None), (61, Severity.WARNING), (601, Severity.CRITICAL)], ids=["new", "old", "very old"]
)
async def test_an_alert_tells_of_it_after_a_while(age: int, severity: Severity | None) -> None:
    clock = FrozenClock()
    store = await tried_store(clock, *[outcome()] * 7)
    clock.advance(timedelta(seconds=age))
    alerts = [
        one for one in find_alerts(await Monitor(store, lease=LEASE).status(), Thresholds()) if one.name == "waiting"
    ]
    assert [alert.severity for alert in alerts] == ([] if severity is None else [severity])
    for alert in alerts:
        assert "the oldest was tried 7 times" in alert.what
        assert "no queue is bound" in alert.what
        assert "messages show 1" in alert.do


def test_tries_are_counted_since_a_person_acted_and_for_their_own_destination() -> None:
    def line(action: Action, destination: str = SINK) -> JournalEntry:
        return JournalEntry(message_id=None, destination=destination, action=action, at=FrozenClock().now(), by="r")

    one = sample(destination=SINK)
    journal = [line(Action.ATTEMPT_FAILED), line(Action.FAILED), line(Action.REDRIVEN), line(Action.TRIED)]
    assert count_tries(journal, one) == (1, True)
    assert count_tries([*journal, line(Action.TRIED, "other")], one) == (1, True)
    assert count_tries([*journal, line(Action.ATTEMPT_FAILED)], one) == (2, False)


async def test_a_message_that_was_just_redriven_is_not_shown_with_the_error_it_had_before() -> None:
    failed = FailedOutcome(message_id=1, state=State.FAILED, attempts=5, error="422")
    store = await tried_store(FrozenClock(), failed)
    await store.redrive(Selection(ids=[1]), by="ann", limit=1)
    assert (await Monitor(store, lease=LEASE).status()).waiting == []


def test_the_time_of_the_tries_ends_with_the_message() -> None:
    begin = FrozenClock().now()
    tries, minute = Tries(5, begin), timedelta(minutes=1)
    failed = replace(sample(), state=State.FAILED, status_at=begin + minute)
    assert format_tries(tries, failed, begin + 60 * minute) == "5 in 1m"
    assert format_tries(tries, replace(failed, state=State.PENDING), begin + 60 * minute) == "5 in 1h"
    assert format_tries(None, failed, begin) == ""


@pytest.mark.parametrize("is_forwarded", [False, True], ids=["redriven", "forwarded"])
async def test_a_message_that_was_sent_on_is_not_shown_as_tried_at_its_new_destination(is_forwarded: bool) -> None:
    clock = FrozenClock()
    failed = FailedOutcome(
        message_id=1, state=State.FAILED, attempts=5, error="422", forward_to="spare" if is_forwarded else None
    )
    store = await tried_store(clock, failed)
    if not is_forwarded:
        await store.redrive(Selection(ids=[1]), by="ann", limit=1, to="spare")
    clock.advance(timedelta(hours=1))
    status = await Monitor(store, lease=LEASE).status(served=["spare"])
    assert status.waiting == []
    assert "waiting" not in {alert.name for alert in find_alerts(status, Thresholds())}
