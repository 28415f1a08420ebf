"""Metrics as the official client library reads them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.cloudevents import from_message
from pillarbox.contracts.store import FailedOutcome, InboxCount, OpenClaim
from pillarbox.errors import TransportUnavailable
from pillarbox.message import State, Waits
from pillarbox.operations.monitor import Status
from pillarbox.operations.prometheus import (
    PrometheusConsumerTelemetry,
    PrometheusTelemetry,
    StatusCollector,
    StoresTelemetry,
)
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.unit.test_monitor import destination

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def samples(*collectors: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, tuple(one.labels.values())): one.value for family in families for one in family.samples}


def late(seconds: float) -> Any:
    return replace(sample(), created_at=NOW - timedelta(seconds=seconds))


def test_deliveries_are_counted_with_their_latency() -> None:
    telemetry = PrometheusTelemetry(clock=FrozenClock(NOW))
    telemetry.on_delivered("billing", [late(0.003), late(0.02), late(4_000)])
    found = samples(telemetry)
    assert found["outbox_delivered_total", ("billing",)] == 3
    assert found["outbox_delivery_latency_seconds_count", ("billing",)] == 3
    assert found["outbox_delivery_latency_seconds_sum", ("billing",)] == 4_000.023
    assert found["outbox_delivery_latency_seconds_bucket", ("billing", "0.005")] == 1
    assert found["outbox_delivery_latency_seconds_bucket", ("billing", "0.025")] == 2
    assert found["outbox_delivery_latency_seconds_bucket", ("billing", "1800.0")] == 2
    assert found["outbox_delivery_latency_seconds_bucket", ("billing", "+Inf")] == 3


def test_deliveries_are_counted_with_their_time_from_end_to_end() -> None:
    telemetry = PrometheusTelemetry(clock=FrozenClock(NOW))
    happened = [NOW - timedelta(seconds=seconds) for seconds in (20, 4_000, -3)]
    telemetry.on_delivered("billing", [replace(late(1), event_time=at) for at in happened])
    found = samples(telemetry)
    assert found["outbox_end_to_end_seconds_count", ("billing",)] == 3
    assert found["outbox_end_to_end_seconds_sum", ("billing",)] == 4_020
    assert found["outbox_end_to_end_seconds_bucket", ("billing", "30.0")] == 2


def test_a_retry_a_failure_and_a_return_are_told_apart() -> None:
    telemetry = PrometheusTelemetry()
    message = sample()
    again = FailedOutcome(message_id=1, state=State.PENDING, waits=Waits.RETRY, attempts=1, delay=timedelta(seconds=2))
    telemetry.on_failed("billing", message, again)
    telemetry.on_failed("billing", message, FailedOutcome(message_id=1, state=State.FAILED, attempts=5))
    telemetry.on_failed(
        "billing", message, FailedOutcome(message_id=1, state=State.PENDING, waits=Waits.HELD, attempts=5)
    )
    telemetry.on_returned("billing", [message, message], reason="away")
    found = samples(telemetry)
    assert found["outbox_retried_total", ("billing",)] == 1
    assert found["outbox_failed_total", ("billing",)] == 2
    assert found["outbox_returned_total", ("billing",)] == 2


def test_outages_are_forgotten_with_a_lost_lease() -> None:
    """The relay begins again without them, and never reports their end: the gauges would stay until a restart."""
    telemetry = PrometheusTelemetry()
    telemetry.on_breaker_opened("billing", reason="away", seconds=1.0)
    telemetry.on_address_blocked("billing", "a", reason="full", is_missing=False)
    telemetry.on_lease_lost(reason="it ran out")
    found = samples(telemetry)
    assert found["outbox_breaker_open", ("billing",)] == found["outbox_blocked_addresses", ("billing",)] == 0
    telemetry.on_address_blocked("billing", "a", reason="full", is_missing=False)
    assert samples(telemetry)["outbox_blocked_addresses", ("billing",)] == 1


async def test_outages_are_forgotten_when_a_relay_stops_in_a_process_that_goes_on() -> None:
    """A relay inside a web service may be stopped, and its metrics are scraped on."""
    telemetry = PrometheusTelemetry()
    gauge = ("outbox_breaker_open", ("billing",))
    async with Relay(MemoryStore(), [Destination(_Away, DestinationSettings(name="billing"))], telemetry=telemetry):
        async with asyncio.timeout(60):
            while samples(telemetry).get(gauge) != 1:  # noqa: ASYNC110 - the relay sets no event
                await asyncio.sleep(0.01)
    assert samples(telemetry)[gauge] == 0


class _Away(MemoryTransport):
    async def open(self) -> None:
        raise TransportUnavailable("away")


def test_outages_are_forgotten_with_a_relay_that_stopped_or_starts_again() -> None:
    """The relay of a store may be started again, as where its file was replaced, or be gone with its tenant."""
    served = {"orders": True, "billing": True}
    stores = StoresTelemetry(lambda: served)
    for name in served:
        stores.get(name).on_breaker_opened("mail", reason="away", seconds=1.0)
        stores.get(name).on_address_blocked("mail", "a", reason="full", is_missing=False)

    def find(gauge: str) -> list[float]:
        return [value for (name, _), value in samples(stores).items() if name == gauge]

    assert (find("outbox_breaker_open"), find("outbox_blocked_addresses")) == ([1, 1], [1, 1])
    stores.get("orders").on_started("relay", relay_id="r")
    assert (find("outbox_breaker_open"), find("outbox_blocked_addresses")) == ([0, 1], [0, 1])
    del served["billing"]
    assert (find("outbox_breaker_open"), find("outbox_blocked_addresses")) == ([0, 0], [0, 0])


def test_the_breaker_is_a_gauge() -> None:
    telemetry = PrometheusTelemetry()
    telemetry.on_breaker_opened("billing", reason="away", seconds=1.0)
    telemetry.on_delivered("mail", [sample()])
    assert samples(telemetry)["outbox_breaker_open", ("billing",)] == 1
    telemetry.on_breaker_closed("billing")
    found = samples(telemetry)
    assert (found["outbox_breaker_open", ("billing",)], found["outbox_breaker_open", ("mail",)]) == (0, 0)


def test_the_state_of_things_comes_from_the_tables() -> None:
    collector = StatusCollector()
    assert samples(collector) == {}
    one = destination(due=7, sending=2, failed=3, oldest_due_at=NOW - timedelta(seconds=90), lanes=32)
    claim = OpenClaim(relay_id=UUID(int=1), claimed_at=NOW, message_ids=[4, 5], strikes=0)
    nowhere = destination(name="_skipped", skipped=4)
    collector.status = Status(at=NOW, destinations=[one, nowhere], relays=[], stuck=[claim], near_failure=[])
    found = samples(collector)
    assert found["outbox_unsent_count", ("billing",)] == 9
    assert found["outbox_max_age_seconds", ("billing",)] == 90
    assert found["outbox_failed_messages", ("billing",)] == 3
    assert found["outbox_leases", ("billing",)] == 32
    assert found["outbox_relays", ()] == 0
    assert found["outbox_stuck_messages", ()] == 2
    assert found["outbox_skipped_messages", ()] == 4


def test_received_messages_that_no_handler_takes_are_counted() -> None:
    telemetry = PrometheusConsumerTelemetry()
    event = from_message(sample())
    telemetry.on_ignored("billing", event)
    telemetry.on_ignored("billing", event)
    assert samples(telemetry)["inbox_ignored_total", ("billing",)] == 2


def test_any_number_of_destinations_makes_a_bounded_number_of_series() -> None:
    telemetry, collector = PrometheusTelemetry(), StatusCollector()
    many = [destination(name=f"d{number:04}", due=1, lanes=2) for number in range(5_000)]
    many += [destination(name="worst", failed=9), destination(name="unserved", due=1, relays=0)]
    inboxes = [InboxCount(consumer=f"c{number:04}", failed=1, oldest_at=NOW) for number in range(5_000)]
    collector.status = Status(
        at=NOW, destinations=many, relays=[], stuck=[], near_failure=[], inboxes=inboxes,
    )  # fmt: skip
    for one in many:
        telemetry.on_delivered(one.name, [sample(), sample()])
        telemetry.on_failed(one.name, sample(), FailedOutcome(message_id=1, state=State.FAILED, attempts=5))
        telemetry.on_returned(one.name, [sample()], reason="away")
        telemetry.on_breaker_opened(one.name, reason="away", seconds=1.0)
        telemetry.on_address_blocked(one.name, "a", reason="full", is_missing=False)
    found = samples(telemetry, collector)
    names = [name for name, _ in found]
    assert max(names.count(name) for name in names if "_bucket" not in name) == 201
    assert found["outbox_unsent_count", ("(others)",)] == 5_001 - sum(
        value for (name, labels), value in found.items() if name == "outbox_unsent_count" and labels != ("(others)",)
    )
    assert (found["outbox_failed_messages", ("worst",)], found["outbox_destination_relays", ("unserved",)]) == (9, 0)
    assert found["outbox_delivered_total", ("(others)",)] == 2 * (5_002 - 200)
    assert found["outbox_blocked_addresses", ("(others)",)] == 5_002 - 200
    assert found["outbox_breaker_open", ("(others)",)] == 1
    assert found["inbox_failed_messages", ("(others)",)] == 4_800
    for one in many:
        telemetry.on_breaker_closed(one.name)
    assert samples(telemetry)["outbox_breaker_open", ("(others)",)] == 0
