"""What was published is what arrives, from us and from others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from pillarbox.cloudevents import of
from pillarbox.errors import DecodeError
from pillarbox.message import Kind
from pillarbox.receiving import event_of, kept, received_from
from pillarbox.testing.receiver_contract.arrange import ids, nothing_more, published, take
from pillarbox.testing.receiver_contract.harness import ReceiverHarness
from pillarbox.testing.samples import sample

__all__ = ["ArrivingContract"]


class ArrivingContract:
    """What `Receiver.receive` answers."""

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
        got, expected = event_of(received), of(message)
        for name in ("message_id", "source", "type", "kind", "topic", "key", "payload", "content_type", "subject"):
            assert (name, getattr(got, name)) == (name, getattr(expected, name))
        for name in ("correlation_id", "causation_id", "event_time"):
            assert (name, getattr(got, name)) == (name, getattr(expected, name))
        assert expected.headers.items() <= got.headers.items()

    @pytest.mark.parametrize("body", [b"", bytes(range(256)), b"\x00\xffpillar" * 20_000])
    async def test_the_payload_is_untouched(self, harness: ReceiverHarness, body: bytes) -> None:
        await harness.publish(sample(payload=body, content_type="application/octet-stream"))
        (received,) = await take(harness.receiver, 1)
        assert event_of(received).payload == body

    async def test_messages_of_a_key_come_in_order(self, harness: ReceiverHarness) -> None:
        made = [sample(key="one", payload=b"%d" % number) for number in range(20)]
        for message in made:
            await harness.publish(message)
        assert ids(await take(harness.receiver, 20)) == [str(message.message_id) for message in made]

    async def test_no_more_come_than_are_asked_for(self, harness: ReceiverHarness) -> None:
        await published(harness, 5)
        assert 1 <= len(await harness.receiver.receive(limit=2)) <= 2

    async def test_a_plain_message_is_known_by_the_same_id_each_time(self, harness: ReceiverHarness) -> None:
        await harness.publish_plain({"tenant": "shop-1", "content-type": "application/json"}, b'{"plain": true}')
        (first,) = await take(harness.receiver, 1)
        await harness.receiver.give_back(first)
        (second,) = await take(harness.receiver, 1)
        events = [event_of(first), event_of(second)]
        assert (events[0].source, events[0].message_id) == (events[1].source, events[1].message_id)
        assert events[0].payload == b'{"plain": true}'
        assert events[0].content_type == "application/json"
        assert {name.lower(): value for name, value in events[0].headers.items()}["tenant"] == "shop-1"

    async def test_two_plain_messages_are_told_apart(self, harness: ReceiverHarness) -> None:
        for _ in range(2):
            await harness.publish_plain({}, b"same")
        first, second = [event_of(one) for one in await take(harness.receiver, 2)]
        assert (first.source, first.message_id) != (second.source, second.message_id)

    async def test_what_is_not_the_event_it_claims_to_be_arrives_too(self, harness: ReceiverHarness) -> None:
        await harness.publish_plain({"content-type": "application/cloudevents+json"}, b'{"specversion": "1.0"}')
        (received,) = await take(harness.receiver, 1)
        with pytest.raises(DecodeError):
            event_of(received)
        assert received.plain.message_id
        assert received.plain.source

    async def test_what_arrived_can_be_kept(self, harness: ReceiverHarness) -> None:
        await harness.publish(sample(key="a", headers={"tenant": "shop-1"}))
        (received,) = await take(harness.receiver, 1)
        assert event_of(received_from(kept(received))) == event_of(received)

    async def test_who_waits_gets_what_comes(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(take(harness.receiver, 1))
        await asyncio.sleep(0.1)  # so that it does wait
        (made,) = await published(harness, 1)
        assert ids(await waiting) == [str(made.message_id)]

    async def test_nothing_comes_of_nothing(self, harness: ReceiverHarness) -> None:
        await nothing_more(harness.receiver)
