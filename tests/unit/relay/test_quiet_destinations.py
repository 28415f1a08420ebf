"""One bad message alone on a quiet destination delays nobody, on virtual time, with the answers of every transport."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.brokers.aws.errors import ServiceDescription, classify_entry_error
from pillarbox.brokers.aws.transport import _BatchSender, _Outcomes
from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.brokers.http.errors import Response, ResponsePolicy
from pillarbox.brokers.http.errors import to_outcome as read_response
from pillarbox.brokers.kafka.errors import build_report
from pillarbox.brokers.kafka.errors import to_outcomes as read_reports
from pillarbox.brokers.mqtt.errors import AcknowledgementPolicy
from pillarbox.brokers.mqtt.errors import to_outcome as read_reason_code
from pillarbox.brokers.nats.errors import read_ack
from pillarbox.brokers.rabbitmq.errors import NACKED
from pillarbox.brokers.redis.errors import ErrorReply, read_add_reply
from pillarbox.brokers.send_batch import DELIVERED, collect_outcomes
from pillarbox.contracts.store import Selection
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.contracts.writer import Insert
from pillarbox.errors import MessageRejected, StoreUnavailable, TransportUnavailable
from pillarbox.events import Types
from pillarbox.message import Kind, Message, Names, State, Waits
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.lease import Lease
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from tests.support.lanes.destination_bench import SINK, owned
from tests.support.virtual_loop import LoopClock, run_virtually

POLL: Final = timedelta(milliseconds=200)
AT_ONCE: Final = 2 * POLL.total_seconds()
"""A poll, and the time that the memory store takes: none."""
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


def answer_http(status: int, retry_after: str | None = None) -> Outcome:
    return read_response(Response(status=status, retry_after=retry_after), ResponsePolicy(where="it"), now=NOW)


def answer_kafka(code: int) -> Outcome:
    (outcome,) = read_reports([build_report(code, topic="t", text="x")], where="Kafka", timeout=9.0, down=None)
    return outcome


def answer_aws(code: str, *, sender_fault: bool = False) -> Outcome:
    service = ServiceDescription(where="SQS", target="queue", action="sqs:SendMessage")
    outcomes = _Outcomes(1)
    call = _Entry()
    refusal = classify_entry_error({"Code": code, "Message": "no", "SenderFault": sender_fault})
    _BatchSender(None, encoder=None, service=service)._refuse([call], refusal, outcomes)  # type: ignore[arg-type, list-item]
    (outcome,) = outcomes.collect()
    return outcome


class _Entry:
    index = 0
    target = "orders"


def collect_one(answer: object) -> Outcome:
    (outcome,) = collect_outcomes([answer], late="late")  # type: ignore[list-item]
    return outcome


def answer_nats(code: int, detail: int) -> Outcome:
    data = b'{"error":{"code":%d,"err_code":%d,"description":"x"}}' % (code, detail)
    return collect_one(read_ack(data, status=None, subject="t"))


ANSWERS: Final = {
    **{f"http {status}": answer_http(status) for status in (302, 401, 403, 404, 408, 409, 410, 429, 500, 502, 503)},
    "http 429 with a time": answer_http(429, "20"),
    "rabbitmq nack": NACKED,
    "kafka, unknown server error": answer_kafka(-1),
    "kafka, no leader": answer_kafka(5),
    "nats, full": answer_nats(503, 10077),
    "nats, refused": answer_nats(400, 1),
    "redis, used up": collect_one(read_add_reply(ErrorReply("ERR The ID specified in XADD is smaller"), key="t")),
    "redis, full": collect_one(read_add_reply(ErrorReply("OOM command not allowed"), key="t")),
    "mqtt, unspecified": read_reason_code(0x80, AcknowledgementPolicy(where="MQTT"), topic="t"),
    "mqtt, quota": read_reason_code(0x97, AcknowledgementPolicy(where="MQTT"), topic="t"),
    "aws, throttled": answer_aws("ThrottlingException"),
    "aws, its own error": answer_aws("InternalError"),
    "a bug of the transport": Outcome(False, "KeyError: 'x'", detail="Traceback …"),
}  # fmt: skip
"""What the transports make of answers that are failures of one message, as far as anyone can tell."""


class Script:
    """Transport that answers as a function says, and notes when it was sent what."""

    def __init__(self, answer: Callable[[Message], Outcome], *, addresses: bool = False, batch: int = 500) -> None:
        self.features = TransportFeatures(name="script", batch=batch, addresses=addresses)
        self.answer = answer
        self.sends: list[tuple[float, str]] = []
        """Time and key of each message that was sent."""
        self.delivered_at: dict[str, float] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    def get_address(self, message: Message) -> str:
        return message.topic

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        now = asyncio.get_running_loop().time()
        self.sends += [(now, message.key or "") for message in messages]
        await asyncio.sleep(0.001)
        outcomes = [self.answer(message) for message in messages]
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.delivered:
                self.delivered_at.setdefault(message.key or "", now)
        return outcomes


class Hanging(Script):
    """Gives no answer to one message."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if messages[0].key == "hangs":
            await asyncio.sleep(20)
        return await super().send(messages)


class Bench:
    """A pipeline over a memory store, on virtual time."""

    def __init__(self, transport: Transport, *, attempts: int | None = 3) -> None:
        self.store = MemoryStore(clock=LoopClock())
        self.outages: list[str] = []
        self.blocked: set[str] = set()
        """Addresses that were reported as blocked, and not as unblocked since."""
        self._number = 0
        lease = Lease(duration=timedelta(hours=1))
        lease.extend(0.0)
        retry = RetryPolicy(attempts=attempts, first=timedelta(seconds=2), jitter=0.0)
        self.state = DestinationState(
            DestinationSettings(name=SINK, retry=retry),
            store=self.store,
            lease=lease,
            policy=OutcomePolicy(
                retry=retry, has_addresses=transport.features.addresses, in_process=transport.features.in_process
            ),
            clock=LoopClock(),
            telemetry=_Outages(self.outages, self.blocked),
            dice=Random(1),
        )
        self.pipeline = Pipeline(
            self.state, transport=transport, open_transport=lambda: transport,
            backoff=PollBackoff(poll_interval=POLL), settings=RelaySettings(poll_interval=POLL),
        )  # fmt: skip

    def put(self, *keys: str) -> None:
        """Commit a message of each key."""
        messages = []
        for key in keys:
            self._number += 1
            messages.append(
                Message(
                    0,
                    UUID(int=self._number),
                    SINK,
                    0,
                    Kind.EVENT,
                    "t",
                    "t",
                    key,
                    b"{}",
                    "application/json",
                    {},
                    "/",
                    None,
                    "c",
                    None,
                    NOW,
                )
            )
        with self.store.transaction() as transaction:
            transaction.insert(Insert(names=Names(), messages=messages))

    async def __aenter__(self) -> Bench:
        self.pipeline.grant(await owned(self.state, 0), [], [])
        self._tasks = [asyncio.create_task(self.pipeline.run()), asyncio.create_task(self._poll())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self) -> None:
        """Wake the reader as the relay's shared poll does."""
        while True:
            await asyncio.sleep(POLL.total_seconds())
            self.pipeline.poll()

    async def find(self, *states: State) -> Sequence[Message]:
        return await self.store.find(Selection(states=states), limit=1_000)


class _Outages(Telemetry):
    def __init__(self, outages: list[str], blocked: set[str]) -> None:
        self._outages = outages
        self._blocked = blocked

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        self._blocked.add(address)

    def on_address_unblocked(self, destination: str, address: str) -> None:
        self._blocked.remove(address)

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        self._outages.append(reason)


async def _send_good_after_bad(answer: Outcome, *, addresses: bool) -> tuple[Script, Bench]:
    """Have one bad message alone for a minute, then a good one of another key."""
    script = Script(lambda message: answer if message.key == "bad" else DELIVERED, addresses=addresses)
    async with Bench(script) as bench:
        bench.put("bad")
        await asyncio.sleep(60)
        bench.put("good")
        await asyncio.sleep(5)
    return script, bench


@pytest.mark.parametrize("addresses", [False, True], ids=["one address", "addresses"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_one_bad_message_alone_delays_no_other(answer: Outcome, addresses: bool) -> None:
    script, bench = run_virtually(_send_good_after_bad(answer, addresses=addresses))
    assert script.delivered_at["good"] - 60 < AT_ONCE
    assert bench.outages == []
    tries = [at for at, key in script.sends if key == "bad" and at < 60]
    assert 2 <= len(tries) <= 12, "it is tried again, at its own pace"


def test_two_bad_messages_alone_delay_no_other() -> None:
    async def run() -> Script:
        script = Script(lambda message: DELIVERED if message.key == "good" else answer_http(500))
        async with Bench(script) as bench:
            bench.put("bad", "worse")
            await asyncio.sleep(60)
            bench.put("good")
            await asyncio.sleep(5)
        return script

    assert run_virtually(run()).delivered_at["good"] - 60 < AT_ONCE


def test_a_send_that_hangs_does_not_keep_others_from_being_sent_in_doubt() -> None:
    async def run() -> Script:
        script = Hanging(lambda message: answer_http(500) if message.key == "bad" else DELIVERED, batch=1)
        async with Bench(script) as bench:
            bench.put("hangs")
            await asyncio.sleep(1)
            bench.put("bad")
            await asyncio.sleep(5)
            bench.put("good")
            await asyncio.sleep(2)
        return script

    assert run_virtually(run()).delivered_at["good"] - 6 < AT_ONCE


class _Slow(Script):
    """Takes twenty seconds to answer for one message."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        if messages[0].key == "bad":
            await asyncio.sleep(20)
        return outcomes


@pytest.mark.parametrize("second", range(60, 100, 4))
def test_a_bad_message_that_is_answered_late_delays_no_other_while_it_is_tried_again(second: int) -> None:
    async def run() -> Script:
        script = _Slow(lambda message: answer_http(500) if message.key == "bad" else DELIVERED)
        async with Bench(script) as bench:
            bench.put("bad")
            await asyncio.sleep(second)
            bench.put("good")
            await asyncio.sleep(25)
        return script

    assert run_virtually(run()).delivered_at["good"] - second < AT_ONCE


def test_many_that_were_tried_are_tried_again_one_at_a_time() -> None:
    """A destination that was down for long answers nothing but failures when all that waited is due again."""

    async def run() -> list[float]:
        script = _Slow(lambda _: answer_http(500), batch=1)
        async with Bench(script) as bench:
            bench.put("bad", *[f"key-{number}" for number in range(200)])
            for entry in await bench.find(State.PENDING):
                bench.store.data.put(replace(entry, waits=Waits.RETRY, last_error="503"))
            await asyncio.sleep(60)
        return [at for at, _ in script.sends]

    assert len(run_virtually(run())) <= 12


def test_a_message_that_breaks_the_connection_delays_no_other_until_a_lease_is_over() -> None:
    """It waits for a lease before it is sent alone. The probe of the destination is a new one meanwhile."""

    async def run() -> Script:
        script = _Breaking(lambda _: DELIVERED)
        async with Bench(script) as bench:  # its lease is an hour
            bench.put("bad")
            await asyncio.sleep(60)
            bench.put("good")
            await asyncio.sleep(5)
        return script

    assert run_virtually(run()).delivered_at["good"] - 60 < AT_ONCE


class _Breaking(Script):
    """Loses its connection over one message."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if any(message.key == "bad" for message in messages):
            raise TransportUnavailable("the connection broke", mid_send=True)
        return await super().send(messages)


def test_an_address_is_unblocked_when_all_that_waited_for_it_is_discarded() -> None:
    """Its messages are gone, so nothing would unblock it: the gauge would say blocked until a restart."""

    async def run() -> tuple[int, int, int]:
        script = Script(lambda _: Outcome(False, "no such queue", not_now=True, missing=True), addresses=True)
        async with Bench(script) as bench:
            bench.put("bad")
            await asyncio.sleep(300)
            blocked = len(bench.blocked)
            await bench.store.discard(Selection(states=[State.PENDING]), by="anna", reason="typo", limit=1)
            await asyncio.sleep(150)
            return blocked, len(bench.blocked), len(bench.state.addresses.describe())

    assert run_virtually(run()) == (1, 0, 0)


# --- a destination that is down ---


async def _count_sends(answer: Callable[[Message], Outcome]) -> list[float]:
    """Let a message of a new key come each second for two minutes; return when something was sent."""
    script = Script(answer)
    async with Bench(script) as bench:
        for number in range(120):
            bench.put(f"key-{number}")
            await asyncio.sleep(1)
    return [at for at, _ in script.sends]


def test_a_destination_that_answers_everything_with_failures_is_not_flooded() -> None:
    times = run_virtually(_count_sends(lambda _: answer_http(503)))
    # Three different ones and tries of these, then probes after 1, 2, 4, 8, 16 and each 30 s.
    assert 8 <= len(times) <= 16
    assert len([at for at in times if at >= 60]) <= 4


def test_a_backlog_is_not_sent_to_a_destination_that_answers_with_failures() -> None:
    async def run() -> list[float]:
        script = Script(lambda _: answer_http(503), batch=1)
        async with Bench(script) as bench:
            bench.put("bad")
            await asyncio.sleep(10)
            bench.put(*[f"key-{number}" for number in range(300)])
            await asyncio.sleep(50)
        return [at for at, _ in script.sends if at > 9]

    assert len(run_virtually(run())) <= 10


def test_silence_makes_the_others_wait_from_the_start() -> None:
    def fall_silent(_: Message) -> Outcome:
        raise TransportUnavailable("connection refused")

    times = run_virtually(_count_sends(fall_silent))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) <= 10
    assert all(gap > 0.5 for gap in gaps), "there is a rest after each, the first included"


def test_what_a_destination_in_an_outage_held_up_goes_when_it_is_back() -> None:
    async def run() -> int:
        script = Script(lambda _: answer_http(503))
        async with Bench(script) as bench:
            bench.put(*[f"key-{number}" for number in range(50)])
            await asyncio.sleep(60)
            script.answer = lambda _: DELIVERED
            await asyncio.sleep(32)
            assert {message.attempts for message in await bench.find(State.DELIVERED)} == {0}
        return len(script.delivered_at)

    assert run_virtually(run()) == 50


# --- handlers, in the relay's own process ---


def test_a_bug_in_a_handler_fails_its_message_by_its_attempts_and_delays_no_other() -> None:
    handled: list[tuple[str, float]] = []

    async def run() -> tuple[Sequence[Message], list[str]]:
        handlers = Handlers(types=Types())

        @handlers.on("*")
        async def bill(_event: object, message: Message) -> None:
            handled.append((message.key or "", asyncio.get_running_loop().time()))
            if message.key == "bad":
                raise KeyError("total")

        async with Bench(HandlersTransport(handlers)) as bench:
            bench.put("bad")
            await asyncio.sleep(60)
            bench.put("good")
            await asyncio.sleep(5)
            assert bench.pipeline.is_reachable
            return await bench.find(State.FAILED), bench.outages

    failed, outages = run_virtually(run())
    assert [(message.key, message.attempts) for message in failed] == [("bad", 3)]
    assert [key for key, _ in handled] == ["bad"] * 3 + ["good"]
    assert handled[-1][1] - 60 < AT_ONCE
    assert outages == []


@pytest.mark.parametrize("second", range(60, 110, 5))
def test_a_handler_that_hangs_over_one_message_delays_no_other(second: int) -> None:
    async def run() -> list[str]:
        handlers, handled = Handlers(types=Types()), []

        @handlers.on("*")
        async def bill(_event: object, message: Message) -> None:
            if message.key == "bad":
                await asyncio.sleep(3_600)
            handled.append(message.key or "")

        async with Bench(HandlersTransport(handlers)) as bench:
            bench.put("bad")
            await asyncio.sleep(second)
            bench.put("good")
            await asyncio.sleep(AT_ONCE)
        return handled

    assert run_virtually(run()) == ["good"]


def test_many_messages_that_a_handler_rejects_are_no_outage() -> None:
    """Nothing is away, so the next good one goes at once, however many were rejected in a row."""

    async def run() -> tuple[Sequence[Message], Sequence[Message], list[str]]:
        handlers = Handlers(types=Types())

        @handlers.on("*")
        async def bill(_event: object, message: Message) -> None:
            if message.key != "good":
                raise MessageRejected("no such customer")

        async with Bench(HandlersTransport(handlers)) as bench:
            bench.put(*[f"bad-{number}" for number in range(60)])
            await asyncio.sleep(5)
            bench.put("good")
            await asyncio.sleep(AT_ONCE)
            return await bench.find(State.FAILED), await bench.find(State.DELIVERED), bench.outages

    failed, delivered, outages = run_virtually(run())
    assert {message.attempts for message in failed} == {1}
    assert (len(failed), [message.key for message in delivered], outages) == (60, ["good"], [])


def test_a_handler_whose_database_is_away_is_an_outage_that_costs_nothing_and_can_be_reached() -> None:
    async def run() -> tuple[Sequence[Message], list[str]]:
        handlers, is_away = Handlers(types=Types()), True

        @handlers.on("*")
        async def bill(_event: object) -> None:
            if is_away:
                raise StoreUnavailable("PostgreSQL cannot be reached")

        async with Bench(HandlersTransport(handlers), attempts=1) as bench:
            bench.put("a", "b", "c", "d")
            await asyncio.sleep(120)
            assert not bench.state.breaker.is_closed
            assert bench.pipeline.is_reachable
            is_away = False
            await asyncio.sleep(40)
            return await bench.find(State.DELIVERED), bench.outages

    delivered, outages = run_virtually(run())
    assert {message.attempts for message in delivered} == {0}
    assert len(delivered) == 4
    assert [reason.partition(" raised ")[2] for reason in outages] == ["StoreUnavailable: PostgreSQL cannot be reached"]
