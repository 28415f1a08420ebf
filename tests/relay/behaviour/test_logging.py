"""What the relay logs: enough to find a message again, at levels that a quiet night keeps silent."""

from __future__ import annotations

import logging

import pytest

from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import LoggingTelemetry
from tests.support.relay_behaviour.scene import Scene, Script, as_told, quick_retry, until

pytestmark = pytest.mark.parametrize("scene", ["sqlite"], indirect=True)

FIELDS = ("message_id", "correlation_id", "type", "topic", "destination", "attempt")
REFUSED = Outcome(delivered=False, error="not now")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="pillarbox.relay")
    return caplog


def starting(told: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in told.records if record.getMessage().startswith(text)]


async def test_each_retry_and_each_failure_is_a_warning_that_names_the_message(
    scene: Scene, told: pytest.LogCaptureFixture
) -> None:
    sink = Script(as_told({1: REFUSED}))
    await scene.put((1, "a"))
    async with scene.relay(sink, retry=quick_retry(2)):
        number = 100
        while not await scene.find(State.FAILED):
            number += 1
            await scene.put((number, "b"))
    (failed,) = await scene.find(State.FAILED)
    retry, failure = starting(told, "will retry") + starting(told, "failed")
    for record, attempt in ((retry, 1), (failure, 2)):
        fields = {name: getattr(record, name) for name in FIELDS}
        assert record.levelno == logging.WARNING
        assert fields == {
            "message_id": str(failed.message_id),
            "correlation_id": failed.correlation_id,
            "type": "t",
            "topic": "sink",
            "destination": "sink",
            "attempt": attempt,
        }


async def test_a_delivery_and_its_batch_are_debug_and_the_summary_is_info(
    scene: Scene, told: pytest.LogCaptureFixture
) -> None:
    await scene.put((1, "a"))
    async with scene.relay(Script()):
        await until(scene.is_drained)
    (message,) = await scene.find()
    delivered = starting(told, "delivered")[0]
    assert delivered.levelno == logging.DEBUG
    assert {getattr(delivered, name) for name in FIELDS} >= {str(message.message_id), message.correlation_id, "sink"}
    (batch,) = starting(told, "recorded")
    assert (batch.levelno, batch.__dict__["delivered"]) == (logging.DEBUG, 1)
    (summary,) = starting(told, "delivered 1 to sink")
    assert (summary.levelno, summary.__dict__["delivered"]) == (logging.INFO, 1)


async def test_what_no_route_takes_is_reported_once_for_each_topic_and_then_counted(
    scene: Scene, told: pytest.LogCaptureFixture
) -> None:
    for number, topic in enumerate(("typo", "typo", "mistake", "typo")):
        await scene.put((number, "a"), topic=topic)
    async with scene.relay(Script()):
        await until(scene.is_drained)
    lines = starting(told, "skipped ")
    assert [record.levelno for record in lines].count(logging.WARNING) == 3
    assert len([one for one in lines if "of topic typo" in one.getMessage()]) == 3
    (summary,) = starting(told, "skipped 4 in")
    assert "`pillarbox messages list --state skipped`" in summary.getMessage()
    shown = [one.getMessage() for one in told.records if one.levelno >= logging.INFO]
    assert not any("_skipped" in text or "after 0 attempts" in text for text in shown)


async def test_an_option_raises_the_level_of_deliveries(scene: Scene, told: pytest.LogCaptureFixture) -> None:
    await scene.put((1, "a"))
    telemetry = LoggingTelemetry(deliveries=logging.INFO)
    destination = Destination(Script, DestinationSettings(name="sink"))
    await Relay(scene.open_store(), [destination], settings=scene.quick(), telemetry=telemetry).run(once=True)
    delivered = [record for record in starting(told, "delivered") if hasattr(record, "message_id")]
    assert [record.levelno for record in delivered] == [logging.INFO]


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    scene: Scene, told: pytest.LogCaptureFixture, short_outages: None
) -> None:
    sink = Script()
    sink.is_down = True
    await scene.put((1, "a"))
    async with scene.relay(sink):
        await until(lambda: starting(told, "sink is down"))
        sink.is_down = False
        await until(scene.is_drained)
    assert starting(told, "sink is down")[0].levelno == logging.WARNING
    assert len(starting(told, "sink answers again")) == 1


async def test_a_bug_in_a_handler_is_its_messages_failure_and_no_outage(
    scene: Scene, told: pytest.LogCaptureFixture, short_outages: None
) -> None:
    handlers = Handlers()

    @handlers.on("t")
    def send_mail(event: object) -> None:
        raise KeyError("customer")

    await scene.put((1, "a"), (2, "b"))
    settings = DestinationSettings(name="sink", retry=quick_retry(attempts=2))
    async with Relay(scene.open_store(), [Destination(lambda: HandlersTransport(handlers), settings)]):
        await until(scene.is_drained)
    failed = {str(message.message_id): message for message in await scene.find(State.FAILED)}
    assert [message.attempts for message in failed.values()] == [2, 2]
    for record in (*starting(told, "will retry"), *starting(told, "failed")):
        text, message = record.getMessage(), failed[record.__dict__["message_id"]]
        assert record.levelno == logging.WARNING
        assert {getattr(record, name) for name in FIELDS} >= {str(message.message_id), message.correlation_id, "sink"}
        assert "send_mail raised KeyError" in text
    assert (len(starting(told, "will retry")), len(starting(told, "failed"))) == (2, 2)
    assert not starting(told, "sink acknowledges nothing")
    assert not starting(told, "sink is down")


async def test_a_handler_that_misses_something_is_an_outage_and_is_told_as_one_that_answers(
    scene: Scene, told: pytest.LogCaptureFixture, short_outages: None
) -> None:
    handlers, is_away = Handlers(), True

    @handlers.on("t")
    def send_mail(event: object) -> None:
        if is_away:
            raise TransportUnavailable("the mail server is away")

    await scene.put((1, "a"), (2, "b"))
    destination = Destination(lambda: HandlersTransport(handlers), DestinationSettings(name="sink"))
    async with Relay(scene.open_store(), [destination], settings=scene.quick()):
        await until(lambda: starting(told, "sink acknowledges nothing"))
        is_away = False
        await until(scene.is_drained)
    assert not starting(told, "sink is down")
    assert "the mail server is away" in starting(told, "sink acknowledges nothing")[0].getMessage()
    assert {message.attempts for message in await scene.find(State.DELIVERED)} == {0}


async def test_of_many_tries_in_one_send_a_few_are_told(scene: Scene, told: pytest.LogCaptureFixture) -> None:
    await scene.put(*[(number, None) for number in range(50)])
    async with scene.relay(Script(lambda _: REFUSED)):
        await until(lambda: starting(told, "and "))
    assert starting(told, "and 47 more to sink")
    assert len(starting(told, "tried")) <= 10


async def test_each_try_is_told_with_its_number_and_the_attempts_across_relays(
    scene: Scene, told: pytest.LogCaptureFixture
) -> None:
    await scene.put((1, "a"))
    async with scene.relay(Script(lambda _: REFUSED)):
        await until(lambda: len(starting(told, "tried")) >= 2)
    first, second = starting(told, "tried")[:2]
    assert "; 1 try, attempts 0), not given up because" in first.getMessage()
    assert "; 2 tries in " in second.getMessage()
    assert [(record.__dict__["tries"], record.__dict__["attempt"]) for record in (first, second)] == [(1, 0), (2, 0)]
    before = len(starting(told, "tried"))
    async with scene.relay(Script(lambda _: REFUSED)):
        await until(lambda: len(starting(told, "tried")) > before)
    assert starting(told, "tried")[before].__dict__["tries"] == before + 1, "the next relay asks the journal"
