"""What was published is what arrives: every attribute, and the payload to the last byte."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pillarbox.message import Kind, Message
from pillarbox.protocols import Outcome
from pillarbox.testing.samples import sample
from pillarbox.testing.transport_contract.arrange import deliver, same
from pillarbox.testing.transport_contract.harness import TransportHarness

__all__ = ["ArrivingContract"]

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


async def _arrives(harness: TransportHarness, message: Message) -> None:
    message = harness.fit(message)
    await deliver(harness, message)
    (got,) = await harness.received()
    same(got, message)


class ArrivingContract:
    """What the far side gets."""

    @pytest.mark.parametrize("name", _PAYLOADS)
    async def test_the_payload_is_untouched(self, harness: TransportHarness, name: str) -> None:
        payload, content_type = _PAYLOADS[name]
        most = harness.transport.features.max_payload
        if most is not None and len(payload) > most:
            pytest.skip(f"This transport takes at most {most} bytes.")
        await _arrives(harness, sample(payload=payload, content_type=content_type))

    async def test_a_message_with_little_arrives(self, harness: TransportHarness) -> None:
        await _arrives(harness, sample(key=None))

    async def test_every_attribute_arrives(self, harness: TransportHarness) -> None:
        await _arrives(
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
        await _arrives(harness, sample(event_time=at))

    async def test_unicode_attributes_arrive(self, harness: TransportHarness) -> None:
        await _arrives(
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
            same(got, message)
