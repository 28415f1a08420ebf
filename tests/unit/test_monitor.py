"""The monitor adds up what stores answer, and the alerts say when somebody should look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import Claim, OpenClaim, Pause, Registry, RelayInfo, Rollup, Selection
from pillarbox.contracts.writer import Insert
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.monitor import (
    DestinationStatus,
    Latency,
    Monitor,
    NearFailure,
    Status,
    TopicStatus,
    build_destinations,
    compute_latency,
)
from pillarbox.stores.memory import MemoryStore
from pillarbox.stores.statistics import count_deliveries
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import FAR, LANE, NEAR, OTHER, fail, own, retry, settle_failures
from pillarbox.writers.memory import memory_writer
from tests.support.lanes.lane_bench import ids

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DEFAULTS = Thresholds()
RELAYS: Sequence[RelayInfo] = [sample_relay()]


def destination(**given: Any) -> DestinationStatus:
    counts = dict.fromkeys(("due", "later", "sending", "delivered", "failed", "skipped", "discarded"), 0)
    base: dict[str, Any] = {
        "name": "billing", "topics": [], **counts, "oldest_due_at": None, "latency": None, "rate": 0.0,
        "retried": 0, "given_up": 0, "end_to_end": None, "relays": 2, "reachable": 2, "lanes": 64, "pause": None,
    }  # fmt: skip
    return DestinationStatus(**(base | given))


def alerts(*stuck: OpenClaim, thresholds: Thresholds = DEFAULTS, **given: Any) -> dict[str, Alert]:
    status = Status(at=NOW, destinations=[destination(**given)], relays=RELAYS, stuck=stuck, near_failure=[])
    return {alert.name: alert for alert in find_alerts(status, thresholds)}


def rollup(*seconds: float, at: datetime = NOW, **given: Any) -> Rollup:
    """Counters of the minute of deliveries that took so long."""
    minute = at.replace(second=0, microsecond=0)
    return count_deliveries(Rollup(destination="billing", minute=minute, **given), [(one, 2 * one) for one in seconds])


def billing(*rollups: Rollup, now: datetime = NOW) -> DestinationStatus:
    (one,) = build_destinations([], {}, rollups, Registry(now, [], {}), {}, served=["billing"])
    return one


def latency(average: timedelta, count: int = 10) -> Latency:
    return Latency(count=count, average=average, p50=average, p95=average, p99=average, longest=average)


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
    assert (orders.due, orders.later, orders.sending, orders.failed) == (2, 0, 1, 1)
    assert [(topic.topic, topic.due, topic.failed) for topic in orders.topics] == [("eu", 1, 0), ("orders", 1, 1)]
    assert (orders.relays, orders.reachable, orders.lanes) == (1, 1, 2)
    assert (orders.delivered, orders.retried, orders.given_up) == (0, 1, 1)
    assert (found["nobody"].later, found["nobody"].is_served) == (1, False)
    assert found["mail"].pause is not None
    assert ids(status.near_failure) == [third.id]
    assert list(status.stuck) == []


def test_percentiles_are_estimated_within_their_bucket() -> None:
    found = compute_latency(rollup(*range(1, 101)))
    assert found is not None
    assert (found.count, found.average, found.longest) == (100, timedelta(seconds=50.5), 100 * SECOND)
    assert abs(found.p50 - 50 * SECOND) < 2 * SECOND
    assert abs(found.p95 - 95 * SECOND) < 5 * SECOND
    assert found.p95 < found.p99 <= found.longest
    one = compute_latency(rollup(7.0))
    assert one is not None
    assert 5 * SECOND <= one.p50 <= one.p99 <= one.longest == 7 * SECOND
    assert compute_latency(rollup()) is None


def test_the_figures_of_a_window_are_those_of_all_its_minutes() -> None:
    one = billing(
        rollup(1.0, at=NOW - 30 * MINUTE, retried=1), rollup(3.0, 5.0, failed=2), rollup(discarded=9),
    )  # fmt: skip
    assert (one.delivered, one.retried, one.given_up, one.attempts) == (3, 1, 2, 6)
    assert one.retry_rate == 1 / 6
    assert one.latency is not None
    assert one.latency.average == 3 * SECOND
    assert one.end_to_end is not None
    assert (one.end_to_end.average, one.end_to_end.longest) == (6 * SECOND, 10 * SECOND)


def test_a_share_of_all_attempts_is_what_counts_and_not_of_the_latest() -> None:
    one = billing(rollup(*[0.1] * 99_000, at=NOW - 30 * MINUTE), rollup(retried=1_000))
    assert one.retry_rate == 0.01


@pytest.mark.parametrize(
    ("attempts", "share", "threshold"),
    [(5, 0.6, 3), (10, 0.6, 6), (2, 0.6, 1), (1, 0.6, None), (None, 0.6, None), (5, 1.0, 4), (5, 0.01, 1)],
)
def test_near_failure_is_a_share_of_the_destinations_attempts(
    attempts: int | None, share: float, threshold: int | None
) -> None:
    near = NearFailure(share=share, attempts={"billing": attempts})
    assert near.threshold("billing") == threshold
    assert NearFailure(attempts={"billing": attempts}).threshold("mail") == 3


async def test_claims_older_than_the_threshold_are_listed_as_stuck_with_their_messages() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    with store.transaction() as tx:
        memory_writer(tx).insert(Insert(names=Names(), messages=[sample(key=NEAR), sample(key=FAR)]))
    fence = await own(store, LANE, OTHER)
    old, young = await store.find(Selection(), limit=10)
    await store.claim(fence, Claim(1, [old.id]))
    clock.advance(15 * MINUTE)
    await store.claim(fence, Claim(2, [young.id]))
    stuck = (await Monitor(store).status()).stuck
    assert [(claim.relay_id, list(claim.message_ids)) for claim in stuck] == [(fence.relay_id, [old.id])]
    assert list((await Monitor(store, stuck_after=16 * MINUTE).status()).stuck) == []


async def test_near_failure_lists_those_with_most_attempts_first() -> None:
    store = MemoryStore()
    with store.transaction() as tx:
        messages = [sample(key=NEAR) for _ in range(60)] + [sample(key=NEAR, destination="forever")]
        memory_writer(tx).insert(Insert(names=Names(), messages=messages))
    fence, other = await own(store, LANE), await own(store, LANE, destination="forever")
    *tried, endless = await store.find(Selection(), limit=100)
    for attempts, message in enumerate(tried):
        await settle_failures(store, fence, retry(message, attempts=attempts // 2), number=1_000 + attempts)
    await settle_failures(store, other, retry(endless, attempts=40))
    near = NearFailure(attempts={"orders": 20, "forever": None})
    found = (await Monitor(store, near_failure=near).status()).near_failure
    assert [message.attempts for message in found] == sorted((n // 2 for n in range(24, 60)), reverse=True)


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
        (10_001, 301, Severity.CRITICAL), (10_001, 0, Severity.CRITICAL),
    ],
)  # fmt: skip
def test_a_backlog_counts_when_it_lasts_or_is_large(due: int, age: int, severity: Severity | None) -> None:
    found = alerts(due=due, oldest_due_at=NOW - age * SECOND).get("backlog")
    assert (found.severity if found else None) is severity


def test_messages_that_no_route_takes_are_a_warning_that_names_their_topics() -> None:
    topics = [
        TopicStatus(topic=topic, due=0, later=0, sending=0, failed=0, skipped=count, discarded=0)
        for topic, count in (("orders.plcaed", 2), ("mail", 3), ("none", 0))
    ]
    found = alerts(name="_skipped", skipped=5, topics=topics, relays=0)["skipped"]
    assert (found.severity, found.destination) == (Severity.WARNING, None)
    assert found.what.startswith("5 messages of topics mail, orders.plcaed were sent nowhere")
    assert "redrive --state skipped --to NAME" in found.do
    assert "skipped" not in alerts(name="_skipped", skipped=5, thresholds=Thresholds(skipped=5))
    assert "skipped" not in alerts(discarded=5)


def test_a_failed_message_is_critical_and_says_what_to_do() -> None:
    found = alerts(failed=1)["failed"]
    assert found.severity is Severity.CRITICAL
    assert "pillarbox failures --destination billing" in found.do
    assert "failed" not in alerts(failed=1, thresholds=Thresholds(failed=1))


def test_a_destination_that_nobody_serves_is_critical_when_messages_wait_for_it() -> None:
    assert alerts(relays=0, later=1)["unserved"].severity is Severity.CRITICAL
    assert "unserved" not in alerts(relays=0, delivered=5)


def test_lanes_without_an_owner_warn_at_once() -> None:
    """The limits of the live relays leave them over: messages in them wait, and nobody takes them."""
    old = msgspec.structs.replace(sample_relay(), destinations=["billing"], started_at=NOW - 4 * SECOND)
    young = msgspec.structs.replace(old, started_at=NOW - 2 * SECOND)

    def look(*relays: RelayInfo, **given: Any) -> Sequence[Alert]:
        one = destination(relays=len(relays), **given)
        return find_alerts(
            Status(at=NOW, destinations=[one], relays=relays, stuck=[], near_failure=[]), Thresholds(relays=0)
        )

    (alert,) = look(old, young, lanes=40)
    assert (alert.name, alert.severity, alert.destination) == ("lanes", Severity.WARNING, "billing")
    assert alert.what == (
        "24 of the 64 lanes of billing have no owner, and messages in them wait: 2 live relays serve it."
    )
    assert "--max-lanes" in alert.do
    assert look(old, lanes=64) == []
    assert look(young, lanes=0) == [], "it has just begun, and is taking them"
    assert look(lanes=0) == [], "nobody serves it, which is another alert"
    assert [one.name for one in look(old, lanes=0, handed_off_to="debezium")] == ["served_twice"]


def test_slow_and_failing_deliveries_warn() -> None:
    slow = alerts(latency=latency(301 * SECOND), delivered=9, retried=1)
    assert set(slow) == {"latency"}
    found = alerts(latency=latency(SECOND), delivered=8, retried=1)
    assert set(found) == {"retry_rate"}
    assert "1 of 9 attempts to deliver to billing failed in the last 1h (11%)" in found["retry_rate"].what
    assert "pillarbox failures --attempts --destination billing" in found["retry_rate"].do


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


@pytest.mark.parametrize(
    ("due", "retrying", "advice"),
    [
        (7, 0, "Look at `pillarbox status`: more relays"),
        (7, 7, "7 messages wait for another attempt"),
        (7, 6, "For the others: look at `pillarbox status`: more relays"),
        (9_000, 1_000, "1,000+ messages wait for another attempt"),
    ],
)
def test_more_relays_are_advised_only_for_what_is_not_tried_again(due: int, retrying: int, advice: str) -> None:
    status = Status(
        at=NOW, destinations=[destination(due=due, oldest_due_at=NOW - 61 * SECOND)], relays=RELAYS, stuck=[],
        near_failure=[], retrying={"billing": retrying} if retrying else {},
    )  # fmt: skip
    alert = find_alerts(status, Thresholds())[0]
    assert advice in alert.do
    assert ("more relays" in alert.do) == ("more relays" in advice)


def test_a_bounded_count_says_so() -> None:
    assert "100,000+ messages" in alerts(failed=100_000, more=["failed"])["failed"].what
    assert "100,000 messages" in alerts(failed=100_000)["failed"].what
    waiting = alerts(relays=0, due=7, later=5_000, more=["later"])["unserved"]
    assert "5,007+ messages wait" in waiting.what


def test_the_rate_is_of_this_minute_and_the_one_before() -> None:
    now = NOW + 30 * SECOND
    rollups = [rollup(*[1.0] * count, at=now - count * MINUTE / 90) for count in (0, 90, 900)]
    assert billing(*rollups, now=now).rate == 90 / 90


def test_too_few_relays_warn_unless_messages_wait_for_one() -> None:
    status = Status(at=NOW, destinations=[], relays=[], stuck=[], near_failure=[])
    (alert,) = find_alerts(status, Thresholds())
    assert (alert.name, alert.severity) == ("relays", Severity.WARNING)
    assert alert.what == "No relay is alive, so new messages would wait."
    assert find_alerts(status, Thresholds(relays=0)) == []
    assert alerts(thresholds=Thresholds(relays=2))["relays"].what == "Only 1 relay is alive."
    waiting = Status(at=NOW, destinations=[destination(due=1, relays=0)], relays=[], stuck=[], near_failure=[])
    assert [alert.name for alert in find_alerts(waiting, Thresholds())] == ["unserved"]


@pytest.mark.parametrize("sending", [timedelta(seconds=30), timedelta(hours=1)])
async def test_an_alert_for_claims_works_below_and_above_the_age_of_stuck_ones(sending: timedelta) -> None:
    clock = FrozenClock(NOW)
    store, thresholds = MemoryStore(clock=clock), Thresholds(sending=sending, stuck=timedelta(minutes=10))
    with store.transaction() as tx:
        memory_writer(tx).insert(Insert(names=Names(), messages=[sample(key=NEAR)]))
    fence = await own(store, LANE, lease=timedelta(hours=9))
    await store.claim(fence, Claim(1, [1]))
    for age, fires in ((sending - SECOND, False), (sending + SECOND, True)):
        clock.jump(NOW + age)
        status = await Monitor(store, stuck_after=thresholds.listed_after).status()
        assert ("sending" in {alert.name for alert in find_alerts(status, thresholds)}) == fires


async def test_what_waits_for_days_behind_a_retried_message_is_critical() -> None:
    clock = FrozenClock(NOW)
    store = MemoryStore(clock=clock)
    with store.transaction() as tx:
        memory_writer(tx).insert(Insert(names=Names(), messages=[sample(key=NEAR) for _ in range(2_001)]))
    fence = await own(store, LANE, lease=timedelta(days=9))
    head, *behind = await store.find(Selection(), limit=3_000)
    await store.claim(fence, Claim(1, []), park={message.id: message.message_id for message in behind})
    clock.advance(timedelta(days=3))
    await settle_failures(store, fence, retry(head, attempts=40, delay=timedelta(minutes=5)))
    status = await Monitor(store).status()
    (one,) = status.destinations
    assert (one.due, one.later, status.oldest_age(one)) == (2_001, 0, timedelta(days=3))
    found = {alert.name: alert.severity for alert in find_alerts(status, Thresholds())}
    assert (found["oldest"], found["backlog"]) == (Severity.CRITICAL, Severity.WARNING)


def test_the_worst_comes_first() -> None:
    found = alerts(failed=1, latency=latency(301 * SECOND), oldest_due_at=NOW - 61 * SECOND)
    assert list(found) == ["failed", "latency", "oldest"]


def test_thresholds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="below its warning"):
        Thresholds(oldest_warning=timedelta(hours=1))
    with pytest.raises(ConfigError, match="below its warning"):
        Thresholds(backlog_warning=10_001)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Thresholds(retry_rate=10.0)
    with pytest.raises(ConfigError, match="near_failure"):
        Thresholds(near_failure=3.0)


def test_with_several_stores_the_commands_of_the_advice_choose_theirs() -> None:
    late = destination(due=7, failed=3, oldest_due_at=NOW - 61 * SECOND)
    status = Status(
        at=NOW, destinations=[late, destination(name="_skipped", skipped=2)], relays=RELAYS, stuck=[], near_failure=[]
    )
    advice = {alert.name: alert.do for alert in find_alerts(status, Thresholds(), store="eu")}
    assert "`pillarbox failures --store eu --destination billing`" in advice["failed"]
    assert "`pillarbox messages redrive --store eu --destination billing`" in advice["failed"]
    assert "`pillarbox status --store eu`" in advice["oldest"]
    assert "`pillarbox messages redrive --store eu --state skipped --to NAME`" in advice["skipped"]
    nobody = Status(at=NOW, destinations=[], relays=[], stuck=[], near_failure=[])
    assert "`pillarbox relay`" in find_alerts(nobody, Thresholds(), store="eu")[0].do
    assert "--store" not in "".join(alert.do for alert in find_alerts(status, Thresholds()))
