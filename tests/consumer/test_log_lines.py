"""What a consumer logs from info on: its start, outages, failures, and what it handled once a minute."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.clock import FrozenClock
from pillarbox.cloudevents import from_message
from pillarbox.consumer import Consumer
from pillarbox.consumer.telemetry import LoggingConsumerTelemetry
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.errors import TransportUnavailable
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.consumer.scene import until

EVENT = from_message(sample())


def test_what_was_handled_is_one_line_a_minute_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox.consumer")
    clock = FrozenClock()
    telemetry = LoggingConsumerTelemetry(clock=clock)
    for second in range(90):
        telemetry.on_handled("billing", EVENT, seconds=0.1)
        if second < 2:
            telemetry.on_duplicate("billing", EVENT)
        telemetry.on_conflict("billing", EVENT, error="deadlock")
        telemetry.on_turn("billing")
        clock.advance(timedelta(seconds=1))
    telemetry.on_turn("billing", is_last=True)
    telemetry.on_turn("billing", is_last=True)
    assert caplog.messages == ["billing handled 61 in 60 s, and 2 came again", "billing handled 29 in 30 s"]


@pytest.mark.parametrize("place", ["broker", "database"])
def test_an_outage_is_one_line_then_one_a_minute_and_one_when_it_ends(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pillarbox.consumer")
    clock = FrozenClock()
    telemetry = LoggingConsumerTelemetry(clock=clock)
    fail, answer = {
        "broker": (telemetry.on_broker_failed, telemetry.on_broker_answered),
        "database": (telemetry.on_store_failed, telemetry.on_store_answered),
    }[place]
    for _ in range(10):
        fail("billing", TransportUnavailable("cut"))
        telemetry.on_turn("billing")
        clock.advance(timedelta(seconds=10))
    for _ in range(3):
        answer("billing")
    subject = f"the {place} of the consumer billing"
    first, minute, last = caplog.messages
    assert re.fullmatch(f"{subject} is away: a \\w+ failed, trying again: TransportUnavailable: cut", first)
    assert minute == f"{subject} is away for 60 s, 7 calls have failed: TransportUnavailable: cut"
    assert last == f"{subject} answers again after 100.0 s, and 10 failed calls"
    assert {record.consumer for record in caplog.records} == {"billing"}  # type: ignore[attr-defined]


class CutOnce(MemoryReceiver):
    is_cut = False

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        if not self.is_cut:
            self.is_cut = True
            raise TransportUnavailable("cut")
        return await super().receive(limit=limit)


async def test_a_consumer_that_runs_says_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox.consumer")
    queue, message = MemoryQueue(), sample()
    consumer = Consumer("billing", receiver=CutOnce(queue), database=MemoryStore())
    consumer.on("*")(lambda event, tx: None)
    async with consumer:
        queue.put(message)
        queue.put(message)
        await until(lambda: len(queue.acknowledged) == 2)
    seen = [re.sub(r"\d+\.\d s|\d+ s", "N s", line) for line in caplog.messages]
    assert seen == [
        "the consumer billing runs",
        "the broker of the consumer billing is away: a call failed, trying again: TransportUnavailable: cut",
        "the broker of the consumer billing answers again after N s, and 1 failed calls",
        "billing handled 1 in N s, and 1 came again",
    ]
