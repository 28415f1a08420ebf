"""The contract of a transport, as tests to inherit.

    class TestMyTransport(TransportContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[TransportHarness]:
            ...

Each test gets a harness of its own. A test can be overridden, but then the transport does not keep the contract. Needs
pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import msgspec
import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.cloudevents import CloudEvent, from_message
from pillarbox.contracts.transport import Outcome, Transport
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Kind, Message, new_message_id
from pillarbox.testing.samples import sample

__all__ = [
    "PATIENCE",
    "ArrivalContract",
    "MemoryTransportHarness",
    "OutageContract",
    "OutcomeContract",
    "RunContract",
    "TransportContract",
    "TransportHarness",
    "assert_ends",
    "assert_same",
    "build_batch",
    "build_run",
    "deliver",
    "deliver_run",
    "read_taken_ids",
    "send_all",
    "wait_for",
]


class TransportHarness(ABC):
    """One opened transport, and a real, empty far side (a broker, a web server) that can be made to fail.

    A harness leaves out the failures that its far side cannot have, and the tests that need them are skipped. It closes
    everything when its fixture ends.
    """

    transport: Transport

    @abstractmethod
    async def received(self) -> Sequence[CloudEvent]:
        """Read at the far side what it took, in order. Refused messages are not among it.

        `pillarbox.cloudevents.read` makes an event of what came over the wire.
        """

    def fit(self, message: Message) -> Message:
        """Return the message, adapted to what the far side can take: another topic, a smaller payload."""
        return message

    async def refuse_next(self) -> None:
        """Make the far side refuse the next message, which it would take later."""
        pytest.skip("This far side cannot be made to refuse a message.")

    async def reject_next(self, message: Message) -> Message:
        """Make the far side reject the next message for good; return the message to send: this one, or one like it."""
        pytest.skip("This far side cannot be made to reject a message.")

    async def cut_next(self) -> None:
        """Break the connection when the next message is under way, before it is answered."""
        pytest.skip("The connection to this far side cannot be broken.")

    async def go_down(self) -> None:
        """Take the far side away: connections break, and nobody can connect."""
        pytest.skip("This far side is never away.")

    async def come_back(self) -> None:
        """Bring the far side back. It also answers what it let hang."""
        pytest.skip("This far side is never away.")

    async def hang(self) -> asyncio.Event:
        """Let every message hang until `come_back`; return an event that is set when one came in."""
        pytest.skip("This far side cannot be made to hang.")


PATIENCE: Final = 30.0
"""Seconds after which a test fails. No test waits for them to pass."""


def build_batch(harness: TransportHarness, count: int = 5) -> list[Message]:
    """Build different messages of different keys."""
    return [harness.fit(sample(key=f"key-{number}", payload=b'{"number": %d}' % number)) for number in range(count)]


async def send_all(harness: TransportHarness, messages: Sequence[Message]) -> list[Outcome]:
    """Send as a relay does: as many messages together as fit into one send, and all sends at once."""
    size = harness.transport.features.batch
    parts = [messages[start : start + size] for start in range(0, len(messages), size)]
    answers = await asyncio.gather(*(harness.transport.send(part) for part in parts))
    return [outcome for answer in answers for outcome in answer]


async def deliver(harness: TransportHarness, message: Message) -> None:
    """Send a message until it is delivered, through the time that the transport needs to connect again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                (outcome,) = await harness.transport.send([message])
            except TransportUnavailable:
                await asyncio.sleep(0.05)
                continue
            assert outcome == Outcome(delivered=True)
            return


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def read_taken_ids(harness: TransportHarness) -> set[str]:
    """Return the ids of the messages that the far side has."""
    return {event.message_id for event in await harness.received()}


def assert_same(got: CloudEvent, message: Message) -> None:
    """Assert that the whole message arrived. Added headers do not matter, nor does letter case in their names."""
    expected = from_message(message)
    for name in set(CloudEvent.__struct_fields__) - {"headers", "extensions"}:
        assert (name, getattr(got, name)) == (name, getattr(expected, name))
    assert dict(_lower_names(expected.headers.items())).items() <= dict(_lower_names(got.headers.items())).items()


def _lower_names(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((name.lower(), value) for name, value in headers)


_CONCURRENT_SENDS: Final = 20


async def _assert_truthful(harness: TransportHarness, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
    assert len(outcomes) == len(messages)
    taken = await read_taken_ids(harness)
    for message, outcome in zip(messages, outcomes, strict=True):
        assert outcome.delivered == (str(message.message_id) in taken)


class OutcomeContract:
    """The outcomes of `Transport.send`."""

    async def test_a_message_is_delivered(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        assert await harness.transport.send([message]) == [Outcome(delivered=True)]
        assert await read_taken_ids(harness) == {str(message.message_id)}

    async def test_nothing_is_answered_for_nothing(self, harness: TransportHarness) -> None:
        assert list(await harness.transport.send([])) == []
        assert await harness.received() == []

    async def test_every_message_is_answered_for(self, harness: TransportHarness) -> None:
        messages = build_batch(harness)
        assert await send_all(harness, messages) == [Outcome(delivered=True)] * len(messages)
        assert await read_taken_ids(harness) == {str(message.message_id) for message in messages}

    async def test_a_batch_arrives_in_order(self, harness: TransportHarness) -> None:
        messages = build_batch(harness)[: harness.transport.features.batch]
        await harness.transport.send(messages)
        assert [event.message_id for event in await harness.received()] == [str(one.message_id) for one in messages]

    async def test_a_refused_message_is_not_delivered(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        await harness.refuse_next()
        (outcome,) = await harness.transport.send([message])
        assert (outcome.delivered, outcome.rejected) == (False, False)
        assert outcome.error
        assert await harness.received() == []

    async def test_a_refusal_is_an_answer(self, harness: TransportHarness) -> None:
        """Taken for silence, a single bad message would be an outage: the relay would send nothing else for a while."""
        (message,) = build_batch(harness, 1)
        await harness.refuse_next()
        (outcome,) = await harness.transport.send([message])
        assert (outcome.unanswered, outcome.lost, outcome.unsent) == (False, False, False)

    async def test_a_refused_message_hurts_only_itself(self, harness: TransportHarness) -> None:
        messages = build_batch(harness)
        await harness.refuse_next()
        outcomes = await send_all(harness, messages)
        assert [outcome.delivered for outcome in outcomes].count(False) == 1
        await _assert_truthful(harness, messages, outcomes)

    async def test_a_refused_message_can_be_delivered_later(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        await harness.refuse_next()
        await harness.transport.send([message])
        await deliver(harness, message)
        assert [event.message_id for event in await harness.received()] == [str(message.message_id)]

    async def test_a_rejected_message_says_so(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        (outcome,) = await harness.transport.send([await harness.reject_next(message)])
        assert (outcome.delivered, outcome.rejected) == (False, True)
        assert outcome.error
        assert await harness.received() == []

    async def test_a_rejected_message_hurts_only_itself(self, harness: TransportHarness) -> None:
        first, *others = build_batch(harness)
        messages = [await harness.reject_next(first), *others]
        outcomes = await send_all(harness, messages)
        assert [outcome.rejected for outcome in outcomes].count(True) == 1
        await _assert_truthful(harness, messages, outcomes)

    async def test_sends_at_once_are_each_answered_for(self, harness: TransportHarness) -> None:
        messages = build_batch(harness, _CONCURRENT_SENDS)
        await harness.refuse_next()
        answers = await asyncio.gather(*(harness.transport.send([message]) for message in messages))
        outcomes = [outcome for answer in answers for outcome in answer]
        assert [outcome.delivered for outcome in outcomes].count(False) == 1
        await _assert_truthful(harness, messages, outcomes)


_PAYLOADS = {
    "json": (b'{"order_id": 1, "total": 1.10}', "application/json"),
    "json-with-spaces": (b' {"b" : 1,\n "a": [ ] } ', "application/json"),
    "unicode": ('{"name": "Žofie 🐟"}'.encode(), "application/json"),
    "text": ("grüße\r\n\t.".encode(), "text/plain; charset=utf-8"),
    "bytes": (bytes(range(256)), "application/octet-stream"),
    "not-what-it-says": (b"\xff{", "application/json"),
    "empty": (b"", "application/octet-stream"),
    "large": (b"\x00\xffpillar" * 32_000, "application/octet-stream"),
}

_HEADERS = {
    "tenant": "shop-1",
    "X-Sentence": "a: b, c; d=\"e\" {f} 'g' 100%",
    "empty": "",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=value,other=1",
}


async def _assert_arrives(harness: TransportHarness, message: Message) -> None:
    message = harness.fit(message)
    await deliver(harness, message)
    (got,) = await harness.received()
    assert_same(got, message)


class ArrivalContract:
    """Payload and attributes of messages at the far side."""

    @pytest.mark.parametrize("name", _PAYLOADS)
    async def test_the_payload_is_untouched(self, harness: TransportHarness, name: str) -> None:
        payload, content_type = _PAYLOADS[name]
        limit = harness.transport.features.max_payload
        if limit is not None and len(payload) > limit:
            pytest.skip(f"This transport takes at most {limit} bytes.")
        await _assert_arrives(harness, sample(payload=payload, content_type=content_type))

    async def test_a_message_with_little_arrives(self, harness: TransportHarness) -> None:
        await _assert_arrives(harness, sample(key=None))

    async def test_every_attribute_arrives(self, harness: TransportHarness) -> None:
        await _assert_arrives(
            harness,
            sample(
                key="customer-1",
                topic="orders.eu",
                type="orders.placed",
                kind=Kind.COMMAND,
                source="/shop/eu",
                subject="order/4711",
                correlation_id="request-1",
                causation_id="message-0",
                event_time=datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
                headers=_HEADERS,
            ),
        )

    async def test_a_time_in_another_zone_is_the_same_time(self, harness: TransportHarness) -> None:
        at = datetime(2026, 3, 29, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=45)))
        await _assert_arrives(harness, sample(event_time=at))

    async def test_unicode_attributes_arrive(self, harness: TransportHarness) -> None:
        await _assert_arrives(
            harness,
            sample(
                key="Žižkov 50% 🐟",
                source="/obchod/Žižkov",
                subject='a "quoted" \\ name',
                correlation_id="grüße",
                causation_id="日本語, 中文",
            ),
        )

    async def test_a_message_keeps_its_id_on_every_attempt(self, harness: TransportHarness) -> None:
        """A far side that knows the id may keep only one of them, but then says that it has it."""
        message = harness.fit(sample())
        await deliver(harness, message)
        assert await harness.transport.send([message]) == [Outcome(delivered=True)]
        received = await harness.received()
        assert 1 <= len(received) <= 2
        for got in received:
            assert_same(got, message)


class OutageContract:
    """`TransportUnavailable` while the far side is away, and delivery when it is back."""

    async def test_ping_reaches_the_far_side(self, harness: TransportHarness) -> None:
        await harness.transport.ping()
        assert await harness.received() == []

    async def test_a_far_side_that_is_away_is_unavailable(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        await harness.go_down()
        with pytest.raises(TransportUnavailable) as away:
            await harness.transport.send([message])
        assert str(away.value)
        await harness.come_back()
        assert await harness.received() == []

    async def test_what_could_not_be_sent_is_not_blamed(self, harness: TransportHarness) -> None:
        """Once the transport knows that nobody is there, no message can be the reason."""
        (message,) = build_batch(harness, 1)
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()
        with pytest.raises(TransportUnavailable) as away:
            await harness.transport.send([message])
        assert not away.value.mid_send

    async def test_ping_finds_nobody(self, harness: TransportHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()

    async def test_opening_finds_nobody(self, harness: TransportHarness) -> None:
        await harness.transport.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.open()

    async def test_opening_again_works_when_the_far_side_is_back(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        await harness.transport.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.open()
        await harness.come_back()
        await harness.transport.open()
        await deliver(harness, message)

    async def test_it_finds_its_way_back(self, harness: TransportHarness) -> None:
        before, during, after = build_batch(harness, 3)
        await deliver(harness, before)
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.send([during])
        await harness.come_back()
        await deliver(harness, after)
        taken = await read_taken_ids(harness)
        assert str(after.message_id) in taken
        assert str(during.message_id) not in taken

    async def test_a_connection_that_breaks_under_way_is_said_to(self, harness: TransportHarness) -> None:
        broken, next_one = build_batch(harness, 2)
        await harness.cut_next()
        with pytest.raises(TransportUnavailable) as cut:
            await harness.transport.send([broken])
        assert cut.value.mid_send
        await deliver(harness, next_one)

    async def test_cancelling_a_send_is_clean(self, harness: TransportHarness) -> None:
        stopped, next_one = build_batch(harness, 2)
        arrived = await harness.hang()
        sending = asyncio.create_task(_send(harness, stopped))
        await wait_for(arrived)
        sending.cancel()
        async with asyncio.timeout(PATIENCE):
            (ended,) = await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        await harness.come_back()
        await deliver(harness, next_one)
        assert str(next_one.message_id) in await read_taken_ids(harness)

    async def test_what_hangs_does_not_hold_up_what_is_cancelled_beside_it(self, harness: TransportHarness) -> None:
        waiting, stopped = build_batch(harness, 2)
        arrived = await harness.hang()
        first = asyncio.create_task(_send(harness, waiting))
        second = asyncio.create_task(_send(harness, stopped))
        await wait_for(arrived)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await harness.come_back()
        async with asyncio.timeout(PATIENCE):
            assert await first == [Outcome(delivered=True)]

    async def test_closing_twice_is_harmless(self, harness: TransportHarness) -> None:
        await harness.transport.close()
        await harness.transport.close()

    async def test_what_is_closed_is_unavailable(self, harness: TransportHarness) -> None:
        (message,) = build_batch(harness, 1)
        await harness.transport.close()
        with pytest.raises(TransportUnavailable):
            await harness.transport.send([message])
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()


async def _send(harness: TransportHarness, message: Message) -> list[Outcome]:
    return list(await harness.transport.send([message]))


_RUN: Final = 5
"""Most messages of a run here."""


def build_run(harness: TransportHarness) -> list[Message]:
    """Build messages of one key and one address; skip the test where the transport takes no runs."""
    features = harness.transport.features
    if not features.runs or features.batch < 3:
        pytest.skip("This transport takes no runs.")
    first = harness.fit(sample(key="run", payload=b'{"number": 0}'))
    others = [
        msgspec.structs.replace(first, message_id=new_message_id(), payload=b'{"number": %d}' % number)
        for number in range(1, min(_RUN, features.batch))
    ]
    return [first, *others]


def assert_ends(outcomes: Sequence[Outcome]) -> int:
    """Assert that a run was delivered up to a message, and that nothing behind that one was sent; return its place."""
    place = next((number for number, outcome in enumerate(outcomes) if not outcome.delivered), len(outcomes))
    assert [outcome.delivered for outcome in outcomes[place:]] == [False] * (len(outcomes) - place)
    assert all(outcome.unsent for outcome in outcomes[place + 1 :])
    return place


async def deliver_run(harness: TransportHarness, messages: Sequence[Message]) -> None:
    """Send a run until all of it is delivered, through the time that the transport needs to connect again.

    A transport may end a run early, and leave the rest unsent.
    """
    rest = list(messages)
    async with asyncio.timeout(PATIENCE):
        while rest:
            try:
                outcomes = await harness.transport.send(rest)
            except TransportUnavailable:
                await asyncio.sleep(0.05)
                continue
            place = assert_ends(outcomes)
            assert place
            assert all(outcome.unsent for outcome in outcomes[place:])
            rest = rest[place:]


async def _assert_has(harness: TransportHarness, messages: Sequence[Message]) -> None:
    assert [event.message_id for event in await harness.received()] == [str(one.message_id) for one in messages]


class RunContract:
    """Several messages of a key in one send, if the features say that the transport takes such runs.

    What the far side takes of a run is its beginning, however the send ends.
    """

    async def test_a_run_arrives_in_order(self, harness: TransportHarness) -> None:
        run = build_run(harness)
        await deliver_run(harness, run)
        await _assert_has(harness, run)

    async def test_a_run_stops_at_a_rejected_message(self, harness: TransportHarness) -> None:
        run = build_run(harness)
        middle = len(run) // 2
        run[middle] = await harness.reject_next(run[middle])
        outcomes = await harness.transport.send(run)
        place = assert_ends(outcomes)
        assert place <= middle
        assert outcomes[place].rejected or outcomes[place].unsent
        assert outcomes[0].delivered or not outcomes[0].unsent
        await _assert_has(harness, run[:place])

    async def test_a_run_stops_at_a_refused_message(self, harness: TransportHarness) -> None:
        run = build_run(harness)
        await harness.refuse_next()
        outcomes = await harness.transport.send(run)
        place = assert_ends(outcomes)
        assert place < len(run)
        assert not outcomes[place].rejected
        await _assert_has(harness, run[:place])

    async def test_what_a_run_left_unsent_can_be_sent_later(self, harness: TransportHarness) -> None:
        run = build_run(harness)
        await harness.refuse_next()
        place = assert_ends(await harness.transport.send(run))
        await deliver_run(harness, run[place:])
        await _assert_has(harness, run)

    async def test_a_run_that_stops_hurts_no_other_key(self, harness: TransportHarness) -> None:
        run, others = build_run(harness), build_batch(harness, 2)
        if harness.transport.features.one_key:
            pytest.skip("A send of this transport has one key only.")
        run[0] = await harness.reject_next(run[0])
        messages = [run[0], others[0], run[1], others[1], run[2]]
        outcomes = await harness.transport.send(messages)
        assert outcomes[0].rejected
        assert [outcome.delivered for outcome in outcomes] == [False, True, False, True, False]
        assert [outcome.unsent for outcome in outcomes] == [False, False, True, False, True]
        assert await read_taken_ids(harness) == {str(other.message_id) for other in others}

    async def test_a_connection_that_breaks_under_a_run_leaves_its_beginning(self, harness: TransportHarness) -> None:
        run = build_run(harness)
        await harness.cut_next()
        acknowledged = 0
        with contextlib.suppress(TransportUnavailable):
            outcomes = await harness.transport.send(run)
            acknowledged = [*(outcome.delivered for outcome in outcomes), False].index(False)
            assert not any(outcome.delivered for outcome in outcomes[acknowledged:])
        await harness.come_back()
        taken = [event.message_id for event in await harness.received()]
        assert len(taken) >= acknowledged
        assert taken == [str(one.message_id) for one in run[: len(taken)]]
        await deliver_run(harness, run[acknowledged:])
        arrived = dict.fromkeys(event.message_id for event in await harness.received())
        assert list(arrived) == [str(one.message_id) for one in run]


class TransportContract(OutcomeContract, ArrivalContract, OutageContract, RunContract):
    """Every promise of `pillarbox.contracts.transport.Transport`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio


class MemoryTransportHarness(TransportHarness):
    """A new memory transport, to be opened. `make` may build a variant of it."""

    def __init__(self, make: Callable[[], MemoryTransport] = MemoryTransport) -> None:
        self._memory = make()
        self.transport = self._memory

    async def received(self) -> Sequence[CloudEvent]:
        return [from_message(message) for message in self._memory.received]

    async def refuse_next(self) -> None:
        self._memory.refuse_next()

    async def reject_next(self, message: Message) -> Message:
        self._memory.reject_next()
        return message

    async def cut_next(self) -> None:
        self._memory.cut_next()

    async def go_down(self) -> None:
        self._memory.go_down()

    async def come_back(self) -> None:
        self._memory.come_back()

    async def hang(self) -> asyncio.Event:
        self._memory.hang()
        return self._memory.arrived
