"""The contract of a receiver, as tests to inherit.

    class TestMyReceiver(ReceiverContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[ReceiverHarness]:
            ...

Each test gets a harness of its own. Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pytest

from pillarbox.cloudevents import from_message
from pillarbox.contracts.receiver import IncomingMessage, Receiver
from pillarbox.decoding import decode_incoming, encode_incoming, to_cloudevent
from pillarbox.errors import DecodeError, TransportUnavailable
from pillarbox.message import Kind, Message
from pillarbox.testing.samples import sample

__all__ = [
    "PATIENCE",
    "AcknowledgeContract",
    "ArrivalContract",
    "MemoryContract",
    "OutageContract",
    "ReceiverContract",
    "ReceiverHarness",
    "assert_nothing_more",
    "build_messages",
    "list_ids",
    "publish_messages",
    "take",
]


class ReceiverHarness(ABC):
    """One opened receiver over a real, empty broker.

    A harness leaves out the failures that its broker cannot have, and the tests that need them are skipped. It closes
    everything when its fixture ends.
    """

    receiver: Receiver

    @abstractmethod
    async def publish(self, message: Message) -> None:
        """Send a message as Pillarbox's own transport does. Returns when the broker has it, or it is on its way."""

    @abstractmethod
    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        """Send a message as another producer would: with native headers, and no CloudEvent unless they make one."""

    async def open_another(self) -> Receiver:
        """Open another receiver of the same consumer. They share the work."""
        pytest.skip("There is one receiver alone.")

    async def die(self) -> None:
        """Kill the receiver: its connection is gone without a goodbye."""
        pytest.skip("The connection of this receiver cannot be broken.")

    async def go_down(self) -> None:
        """Take the broker away: connections break, and nobody can connect."""
        pytest.skip("This broker is never away.")

    async def come_back(self) -> None:
        """Bring the broker back, with everything it had."""
        pytest.skip("This broker is never away.")


PATIENCE: Final = 40.0
"""Seconds after which a test fails. No test waits for them to pass."""
_LARGE: Final = 64 * 1024
_QUIET: Final = 0.5
"""Seconds in which a broker would have delivered what it has."""


def build_messages(count: int) -> list[Message]:
    """Build different messages of different keys."""
    return [sample(key=f"key-{number}", payload=b'{"number": %d}' % number) for number in range(count)]


async def publish_messages(harness: ReceiverHarness, count: int) -> list[Message]:
    """Publish different messages, and return them."""
    messages = build_messages(count)
    for message in messages:
        await harness.publish(message)
    return messages


async def take(receiver: Receiver, count: int, *, limit: int = 100) -> list[IncomingMessage]:
    """Receive exactly `count` messages, through the time that the receiver needs to connect again."""
    taken: list[IncomingMessage] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            try:
                taken += await receiver.receive(limit=min(limit, count - len(taken)))
            except TransportUnavailable:
                await asyncio.sleep(0.05)
    return taken


async def assert_nothing_more(receiver: Receiver) -> None:
    """Assert that the broker has nothing for this receiver."""
    try:
        async with asyncio.timeout(_QUIET):
            came = await receiver.receive(limit=10)
    except TimeoutError:
        return
    raise AssertionError(f"came: {list_ids(came)}")


def list_ids(received: Sequence[IncomingMessage]) -> list[str]:
    """List the message ids, in order."""
    return [to_cloudevent(one).message_id for one in received]


class AcknowledgeContract:
    """`Receiver.acknowledge` and `give_back`."""

    async def test_what_is_acknowledged_does_not_come_again(self, harness: ReceiverHarness) -> None:
        await publish_messages(harness, 3)
        for received in await take(harness.receiver, 3):
            await harness.receiver.acknowledge(received)
        await harness.receiver.close()
        await harness.receiver.open()
        await assert_nothing_more(harness.receiver)

    async def test_what_is_not_acknowledged_comes_again_after_closing(self, harness: ReceiverHarness) -> None:
        messages = await publish_messages(harness, 3)
        first, *_ = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(first)
        await harness.receiver.close()
        await harness.receiver.open()
        again = await take(harness.receiver, 2)
        assert list_ids(again) == [str(message.message_id) for message in messages[1:]]
        assert all(one.redelivered for one in again)

    async def test_acknowledging_out_of_order_loses_nothing(self, harness: ReceiverHarness) -> None:
        """Different keys are handled at once, and the later may be done first."""
        messages = await publish_messages(harness, 3)
        first, _, third = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(third)
        await harness.receiver.acknowledge(first)
        await harness.receiver.close()
        await harness.receiver.open()
        again = await take(harness.receiver, 1)
        assert list_ids(again) == [str(messages[1].message_id)]

    async def test_what_is_given_back_comes_again(self, harness: ReceiverHarness) -> None:
        messages = await publish_messages(harness, 3)
        taken = await take(harness.receiver, 3)
        for received in reversed(taken):
            await harness.receiver.give_back(received)
        again = await take(harness.receiver, 3)
        assert sorted(list_ids(again)) == sorted(str(message.message_id) for message in messages)

    async def test_cancelling_loses_nothing(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(_receive_one(harness))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        messages = await publish_messages(harness, 3)
        assert list_ids(await take(harness.receiver, 3)) == [str(message.message_id) for message in messages]

    async def test_cancelling_over_and_over_loses_nothing(self, harness: ReceiverHarness) -> None:
        """Also not what comes at the same moment."""
        messages = build_messages(30)
        publishing = asyncio.create_task(_publish_all(harness, messages))
        got: list[IncomingMessage] = []
        async with asyncio.timeout(PATIENCE):
            while len(got) < len(messages):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        got += await harness.receiver.receive(limit=4)
        await publishing
        assert list_ids(got) == [str(message.message_id) for message in messages]

    async def test_several_share_the_work(self, harness: ReceiverHarness) -> None:
        messages = await publish_messages(harness, 10)
        first = await take(harness.receiver, 1, limit=1)
        other = await harness.open_another()
        for received in first:
            await harness.receiver.acknowledge(received)
        seen = set(list_ids(first))
        await harness.receiver.close()
        while len(seen) < len(messages):
            for received in await take(other, 1):
                await other.acknowledge(received)
                seen.add(*list_ids([received]))
        assert seen == {str(message.message_id) for message in messages}


async def _publish_all(harness: ReceiverHarness, messages: Sequence[Message]) -> None:
    for message in messages:
        await harness.publish(message)


async def _receive_one(harness: ReceiverHarness) -> None:
    await harness.receiver.receive(limit=1)


class ArrivalContract:
    """The messages of `Receiver.receive`."""

    async def test_a_message_arrives_whole(self, harness: ReceiverHarness) -> None:
        message = sample(
            key="customer-1",
            topic="orders.eu",
            kind=Kind.COMMAND,
            source="/shop/eu",
            subject="order/4711",
            correlation_id="request-1",
            causation_id="message-0",
            event_time=datetime(2026, 2, 28, 23, 59, 59, 999_000, tzinfo=UTC),
            headers={"tenant": "shop-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            payload=b'{"order_id": 1}',
        )
        await harness.publish(message)
        (received,) = await take(harness.receiver, 1)
        got, expected = to_cloudevent(received), from_message(message)
        for name in ("message_id", "source", "type", "kind", "topic", "key", "payload", "content_type", "subject"):
            assert (name, getattr(got, name)) == (name, getattr(expected, name))
        for name in ("correlation_id", "causation_id", "event_time"):
            assert (name, getattr(got, name)) == (name, getattr(expected, name))
        assert expected.headers.items() <= got.headers.items()

    @pytest.mark.parametrize("body", [b"", bytes(range(256)), b"\x00\xffpillar" * 20_000])
    async def test_the_payload_is_untouched(self, harness: ReceiverHarness, body: bytes) -> None:
        await harness.publish(sample(payload=body, content_type="application/octet-stream"))
        (received,) = await take(harness.receiver, 1)
        assert to_cloudevent(received).payload == body

    async def test_messages_of_a_key_come_in_order(self, harness: ReceiverHarness) -> None:
        messages = [sample(key="one", payload=b"%d" % number) for number in range(20)]
        for message in messages:
            await harness.publish(message)
        assert list_ids(await take(harness.receiver, 20)) == [str(message.message_id) for message in messages]

    async def test_no_more_come_than_are_asked_for(self, harness: ReceiverHarness) -> None:
        await publish_messages(harness, 5)
        assert 1 <= len(await harness.receiver.receive(limit=2)) <= 2

    async def test_a_plain_message_is_known_by_the_same_id_each_time(self, harness: ReceiverHarness) -> None:
        await harness.publish_plain({"tenant": "shop-1", "content-type": "application/json"}, b'{"plain": true}')
        (first,) = await take(harness.receiver, 1)
        await harness.receiver.give_back(first)
        (second,) = await take(harness.receiver, 1)
        events = [to_cloudevent(first), to_cloudevent(second)]
        assert (events[0].source, events[0].message_id) == (events[1].source, events[1].message_id)
        assert events[0].payload == b'{"plain": true}'
        assert events[0].content_type == "application/json"
        assert {name.lower(): value for name, value in events[0].headers.items()}["tenant"] == "shop-1"

    async def test_two_plain_messages_are_told_apart(self, harness: ReceiverHarness) -> None:
        for _ in range(2):
            await harness.publish_plain({}, b"same")
        first, second = [to_cloudevent(one) for one in await take(harness.receiver, 2)]
        assert (first.source, first.message_id) != (second.source, second.message_id)

    async def test_what_is_not_the_event_it_claims_to_be_arrives_too(self, harness: ReceiverHarness) -> None:
        await harness.publish_plain({"content-type": "application/cloudevents+json"}, b'{"specversion": "1.0"}')
        (received,) = await take(harness.receiver, 1)
        with pytest.raises(DecodeError):
            to_cloudevent(received)
        assert received.fallback.message_id
        assert received.fallback.source

    async def test_what_arrived_can_be_kept(self, harness: ReceiverHarness) -> None:
        await harness.publish(sample(key="a", headers={"tenant": "shop-1"}))
        (received,) = await take(harness.receiver, 1)
        assert to_cloudevent(decode_incoming(encode_incoming(received))) == to_cloudevent(received)

    async def test_who_waits_gets_what_comes(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(take(harness.receiver, 1))
        await asyncio.sleep(0.1)  # so that it does wait
        (message,) = await publish_messages(harness, 1)
        assert list_ids(await waiting) == [str(message.message_id)]

    async def test_nothing_comes_of_nothing(self, harness: ReceiverHarness) -> None:
        await assert_nothing_more(harness.receiver)


class MemoryContract:
    """`Receiver.pending_bytes`."""

    async def test_bytes_that_are_not_handled_are_bounded(self, harness: ReceiverHarness) -> None:
        harness.receiver.pending_bytes = 4 * _LARGE
        messages = [sample(key=f"key-{number}", payload=b"x" * _LARGE) for number in range(12)]
        for message in messages:
            await harness.publish(message)
        held = await _take_until_quiet(harness.receiver)
        assert _LARGE <= sum(len(one.body) for one in held) <= 5 * _LARGE
        seen = set(list_ids(held))
        while len(seen) < len(messages):
            for received in held:
                await harness.receiver.acknowledge(received)
            held = await take(harness.receiver, 1)
            seen.update(list_ids(held))
        assert seen == {str(message.message_id) for message in messages}

    async def test_a_message_over_the_bound_comes_alone(self, harness: ReceiverHarness) -> None:
        harness.receiver.pending_bytes = 1_000
        for _ in range(3):
            await harness.publish(sample(payload=b"x" * _LARGE))
        for _ in range(3):
            (received,) = await _take_until_quiet(harness.receiver)
            await harness.receiver.acknowledge(received)
        await assert_nothing_more(harness.receiver)

    async def test_what_is_given_back_makes_room(self, harness: ReceiverHarness) -> None:
        harness.receiver.pending_bytes = _LARGE
        await harness.publish(sample(payload=b"x" * _LARGE))
        for _ in range(2):
            (received,) = await take(harness.receiver, 1)
            await harness.receiver.give_back(received)
        assert len(await take(harness.receiver, 1)) == 1


async def _take_until_quiet(receiver: Receiver) -> list[IncomingMessage]:
    """Receive at least one message, and all that come without an acknowledgement."""
    taken = await take(receiver, 1)
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(_QUIET):
                taken += await receiver.receive(limit=100)
    return taken


class OutageContract:
    """`TransportUnavailable` while the broker is away, and messages when it is back."""

    async def test_ping_reaches_the_broker(self, harness: ReceiverHarness) -> None:
        await harness.receiver.ping()

    async def test_what_a_dead_consumer_had_comes_to_another(self, harness: ReceiverHarness) -> None:
        """An acknowledgement may have been on its way when it died: only what it did not acknowledge must come."""
        messages = await publish_messages(harness, 3)
        first, *rest = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(first)
        other = await harness.open_another()
        await harness.die()
        came: set[str] = set()
        while not came.issuperset(list_ids(rest)):
            for received in await take(other, 1):
                assert received.redelivered
                await other.acknowledge(received)
                came.update(list_ids([received]))
        assert came <= {str(message.message_id) for message in messages}

    async def test_what_is_acknowledged_too_late_does_no_harm(self, harness: ReceiverHarness) -> None:
        """The connection it came by is gone: it comes again, and that one can be acknowledged."""
        messages = await publish_messages(harness, 1)
        (old,) = await take(harness.receiver, 1)
        await harness.go_down()
        await harness.come_back()
        (again,) = await take(harness.receiver, 1)
        assert list_ids([again]) == [str(messages[0].message_id)]
        await harness.receiver.acknowledge(old)
        await harness.receiver.give_back(old)
        await harness.receiver.acknowledge(again)
        await assert_nothing_more(harness.receiver)

    async def test_a_broker_that_is_away_is_unavailable(self, harness: ReceiverHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await _receive_until_unavailable(harness)
        with pytest.raises(TransportUnavailable):
            await harness.receiver.ping()

    async def test_who_waits_is_told_that_the_broker_went(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(_receive_until_unavailable(harness))
        await asyncio.sleep(0.1)  # so that it does wait
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            async with asyncio.timeout(PATIENCE):
                await waiting

    async def test_it_finds_its_way_back(self, harness: ReceiverHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await _receive_until_unavailable(harness)
        await harness.come_back()
        messages = await publish_messages(harness, 2)
        assert list_ids(await take(harness.receiver, 2)) == [str(message.message_id) for message in messages]

    async def test_opening_finds_nobody(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.receiver.open()

    async def test_closing_twice_is_harmless(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        await harness.receiver.close()

    async def test_what_is_closed_is_unavailable(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        with pytest.raises(TransportUnavailable):
            await harness.receiver.ping()


async def _receive_until_unavailable(harness: ReceiverHarness) -> None:
    while True:
        await harness.receiver.receive(limit=1)


class ReceiverContract(ArrivalContract, AcknowledgeContract, MemoryContract, OutageContract):
    """Every promise of `pillarbox.contracts.receiver.Receiver`. Subclass it and give it a `harness` fixture."""

    pytestmark = pytest.mark.asyncio
