"""The monitor adds up what stores answer, and the alerts say when somebody should look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import Activity, Claim, OpenClaim, Pause, Registry, Sample, Selection
from pillarbox.contracts.writer import Insert
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.monitor import (
    DestinationStatus,
    Latency,
    Monitor,
    Status,
    build_destinations,
    compute_latency,
)
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import FAR, LANE, NEAR, OTHER, fail, own, retry, settle_failures
from pillarbox.writers.memory import memory_writer
from tests.support.lanes.lane_bench import ids

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DEFAULTS = Thresholds()


def destination(**given: Any) -> DestinationStatus:
    counts = dict.fromkeys(("due", "later", "sending", "delivered", "failed", "skipped", "discarded"), 0)
    base: dict[str, Any] = {
        "name": "billing", "topics": [], **counts, "oldest_due_at": None, "latency": None, "rate": 0.0,
        "attempts_failed": 0, "relays": 2, "reachable": 2, "lanes": 64, "pause": None,
    }  # fmt: skip
    return DestinationStatus(**(base | given))


def alerts(*stuck: OpenClaim, thresholds: Thresholds = DEFAULTS, **given: Any) -> dict[str, Alert]:
    status = Status(at=NOW, destinations=[destination(**given)], relays=[], stuck=stuck, near_failure=[])
    return {alert.name: alert for alert in find_alerts(status, thresholds)}


def delivery(*, ago: timedelta) -> Sample:
    return Sample(destination="billing", topic="orders", latency=SECOND, end_to_end=SECOND, at=NOW - ago)


def rate_of(delivered: Sequence[Sample], *, complete: bool = True) -> float:
    activity = Activity(delivered=delivered, attempts_failed={}, complete=complete)
    (one,) = build_destinations([], {}, activity, Registry(NOW, [], {}), {}, served=["billing"])
    return one.rate


def latency(average: timedelta, count: int = 10) -> Latency:
    return Latency(count=count, average=average, p50=average, p95=average, p99=average)


async def test_status_adds_up_what_the_store_answers() -> None:
    store = MemoryStore()
    with store.transaction() as tx:
        memory_writer(tx).insert(Insert(names=Names(), messages=[sample(key=NEAR), sample(key=NEAR, topic="eu")]))
        memory_writer(tx).insert(Insert(names=Names(), messages=[sample(key=FAR), sample(key=FAR)]))
        memory_writer(tx).insert(
            Insert(names=Names(), messages=[sample(key=NEAR, destination="nobody")], delay=timedelta(hours=1))
        )
    fence = await own(store, LANE, OTHER)
    first, _, third, fourth = await store.find(Selection(destination="orders"), limit=10)
    await settle_failures(store, fence, fail(first))
    await settle_failures(store, fence, retry(third, attempts=4), number=1_001)
    await store.claim(fence, Claim(7, [fourth.id]))
    await store.pause("mail", by="ann", reason="moving")
    status = await Monitor(store).status(served=["quiet"])
    found = {one.name: one for one in status.destinations}
    assert list(found) == ["mail", "nobody", "orders", "quiet"]
    orders = found["orders"]
    assert (orders.due, orders.later, orders.sending, orders.failed) == (1, 1, 1, 1)
    assert [(topic.topic, topic.due, topic.failed) for topic in orders.topics] == [("eu", 1, 0), ("orders", 0, 1)]
    assert (orders.relays, orders.reachable, orders.lanes, orders.attempts_failed) == (1, 1, 2, 1)
    assert (found["nobody"].later, found["nobody"].is_served) == (1, False)
    assert found["mail"].pause is not None
    assert ids(status.near_failure) == [third.id]
    assert list(status.stuck) == []


def test_percentiles_are_latencies_that_there_were() -> None:
    found = compute_latency([timedelta(seconds=number) for number in range(1, 101)])
    assert found is not None
    assert (found.count, found.average) == (100, timedelta(seconds=50.5))
    assert (found.p50, found.p95, found.p99) == (50 * SECOND, 95 * SECOND, 99 * SECOND)
    assert compute_latency([SECOND]) == Latency(count=1, average=SECOND, p50=SECOND, p95=SECOND, p99=SECOND)
    assert compute_latency([]) is None


def test_all_is_well() -> None:
    assert alerts(due=10_000, delivered=100, latency=latency(SECOND), oldest_due_at=NOW - 60 * SECOND) == {}


@pytest.mark.parametrize(
    ("age", "severity"), [(60, None), (61, Severity.WARNING), (600, Severity.WARNING), (601, Severity.CRITICAL)]
)
def test_the_oldest_message(age: int, severity: Severity | None) -> None:
    found = alerts(oldest_due_at=NOW - age * SECOND).get("oldest")
    assert (found.severity if found else None) is severity


@pytest.mark.parametrize(
    ("due", "age", "severity"),
    [
        (1_000, 301, None), (1_001, 300, None), (1_001, 301, Severity.WARNING), (10_000, 301, Severity.WARNING),
        (10_001, 301, Severity.CRITICAL),
    ],
)  # fmt: skip
def test_a_backlog_counts_when_it_lasts(due: int, age: int, severity: Severity | None) -> None:
    found = alerts(due=due, oldest_due_at=NOW - age * SECOND).get("backlog")
    assert (found.severity if found else None) is severity


def test_a_failed_message_is_critical_and_says_what_to_do() -> None:
    found = alerts(failed=1)["failed"]
    assert found.severity is Severity.CRITICAL
    assert "pillarbox failures --destination billing" in found.do
    assert "failed" not in alerts(failed=1, thresholds=Thresholds(failed=1))


def test_a_destination_that_nobody_serves_is_critical_when_messages_wait_for_it() -> None:
    assert alerts(relays=0, later=1)["unserved"].severity is Severity.CRITICAL
    assert "unserved" not in alerts(relays=0, delivered=5)


def test_slow_and_failing_deliveries_warn() -> None:
    slow = alerts(latency=latency(301 * SECOND, count=9), attempts_failed=1)
    assert set(slow) == {"latency"}
    assert set(alerts(latency=latency(SECOND, count=8), attempts_failed=1)) == {"retry_rate"}


def test_a_batch_in_hand_for_long_warns() -> None:
    old = OpenClaim(relay_id=uuid4(), claimed_at=NOW - timedelta(minutes=31), message_ids=[1, 2], strikes=0)
    young = OpenClaim(relay_id=uuid4(), claimed_at=NOW - timedelta(minutes=29), message_ids=[3], strikes=0)
    assert "2 messages" in alerts(old, young)["sending"].what
    assert "sending" not in alerts(young)


def test_advice_fits_the_reason() -> None:
    pause = Pause(destination="billing", by="ann", at=NOW, reason="moving")
    late = NOW - 61 * SECOND
    assert "pillarbox resume billing" in alerts(oldest_due_at=late, pause=pause)["oldest"].do
    assert "No relay serves" in alerts(oldest_due_at=late, relays=0)["oldest"].do
    assert "doctor" in alerts(oldest_due_at=late, reachable=0)["oldest"].do


def test_a_bounded_count_says_so() -> None:
    assert "100,000+ messages" in alerts(failed=100_000, more=["failed"])["failed"].what
    assert "100,000 messages" in alerts(failed=100_000)["failed"].what
    waiting = alerts(relays=0, due=7, later=5_000, more=["later"])["unserved"]
    assert "5,007+ messages wait" in waiting.what


def test_the_rate_is_of_the_last_minute() -> None:
    made = [delivery(ago=seconds * SECOND) for seconds in (1, 10, 59, 61, 600)]
    assert rate_of(made) == 3 / 60


def test_the_rate_of_a_minute_that_had_more_than_was_looked_at_is_of_what_was() -> None:
    made = [delivery(ago=SECOND * number / 100) for number in range(1, 1_001)]
    assert rate_of(made, complete=False) == 999 / 10


def test_the_worst_comes_first() -> None:
    found = alerts(failed=1, latency=latency(301 * SECOND), oldest_due_at=NOW - 61 * SECOND)
    assert list(found) == ["failed", "latency", "oldest"]


def test_thresholds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="below its warning"):
        Thresholds(oldest_warning=timedelta(hours=1))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Thresholds(retry_rate=10.0)
