"""Messages as MQTT packets, against the driver's own packing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from pillarbox.brokers.mqtt.client import PackedProperties
from pillarbox.brokers.mqtt.encoding import EncodedMessage, build_encoder
from pillarbox.brokers.templates import compile_template
from pillarbox.cloudevents import MQTT, STRUCTURED, from_message, read
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.testing.samples import sample

binary = build_encoder(compile_template("{topic}", option="topic", transport="mqtt"), mode="binary")
structured = build_encoder(compile_template("{topic}", option="topic", transport="mqtt"), mode="structured")


def unpack(encoded: EncodedMessage) -> Any:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.unpack(encoded.properties)  # type: ignore[no-untyped-call]
    return properties


def test_the_driver_reads_what_was_packed() -> None:
    message = sample(key="Žižkov 🐟", subject="order/1", correlation_id="grüße", headers={"tenant": "shop-1"})
    encoded = binary(message)
    properties = unpack(encoded)
    assert properties.ContentType == "application/json"
    assert properties.CorrelationData == "grüße".encode()
    assert dict(properties.UserProperty) == {
        "specversion": "1.0",
        "id": str(message.message_id),
        "source": "/shop",
        "type": "orders.placed",
        "subject": "order/1",
        "time": "2025-12-31T23:59:59.123456Z",
        "partitionkey": "Žižkov 🐟",
        "correlationid": "grüße",
        "topic": "orders",
        "kind": "event",
        "tenant": "shop-1",
    }
    assert encoded.body is message.payload


def test_structured_mode_has_the_attributes_in_the_body() -> None:
    message = sample()
    encoded = structured(message)
    properties = unpack(encoded)
    assert properties.ContentType == STRUCTURED
    assert not hasattr(properties, "UserProperty")
    assert read({"content-type": STRUCTURED}, encoded.body, binding=MQTT) == from_message(message)


@pytest.mark.parametrize("name", ["id", "TYPE", "time", "header-x", "traceparent", "tenant"])
def test_a_header_with_the_name_of_an_attribute_arrives_as_a_header(name: str) -> None:
    message = sample(headers={name: "mine"})
    encoded = binary(message)
    pairs = {**dict(unpack(encoded).UserProperty), "content-type": "application/json"}
    assert read(pairs, encoded.body, binding=MQTT) == from_message(message)


@pytest.mark.parametrize("count", [0, 1, 100, 127, 128, 16_000, 16_383, 16_384, 70_000, 2_097_152])
def test_the_size_is_that_of_the_packet(count: int) -> None:
    encoded = binary(sample(payload=b"x" * count))
    assert encoded.size == len(_driver_packet(encoded))


def _driver_packet(encoded: EncodedMessage) -> bytes:
    """What paho would write."""
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    packets: list[bytes] = []

    def queued(_command: int, packet: bytes, *_: object) -> int:
        packets.append(packet)
        return 0

    client._sock = object()  # type: ignore[assignment]  # only asked whether there is one
    client._packet_queue = queued  # type: ignore[method-assign,assignment]
    client._send_publish(
        1, encoded.topic.encode(), encoded.body, 1, False, False, None, PackedProperties(encoded.properties)
    )
    client._sock = None
    return packets[0]


@pytest.mark.parametrize("topic", ["orders/+", "orders/#", "#", "a\x00b", "a\nb", "x" * 65_536, "\ufffe", "\ud800"])
def test_a_topic_that_nobody_can_publish_to(topic: str) -> None:
    with pytest.raises(MessageRejected, match=r"none that MQTT can publish to|control character|wildcard"):
        binary(sample(topic=topic))


@pytest.mark.parametrize("topic", ["orders", "/", "a/b//c", "a$/b", "Žižkov/🐟", "x" * 65_535])
def test_a_topic_that_is_fine(topic: str) -> None:
    assert binary(sample(topic=topic)).topic == topic


@pytest.mark.parametrize("text", ["a\x00", "a\x1fb", "\x7f", "\x85", "\ufdd0", "\uffff", "\U0010fffe", "\ud800"])
def test_text_that_a_broker_hangs_up_on(text: str) -> None:
    for message in (sample(subject=text), sample(headers={"x": text}), sample(correlation_id=text)):
        with pytest.raises(MessageRejected, match="does not carry"):
            binary(message)


def test_text_that_is_too_long() -> None:
    binary(_with_header("x" * 65_535))
    with pytest.raises(MessageRejected, match="longer than 65535"):
        binary(_with_header("x" * 65_536))


def _with_header(value: str) -> Message:
    return msgspec.structs.replace(sample(), headers={"x": value})
