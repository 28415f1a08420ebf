"""Messages as MQTT packets, against the driver's own packing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from pillarbox.cloudevents import MQTT, STRUCTURED, of, read
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from pillarbox.transports.mqtt.client import Packed
from pillarbox.transports.mqtt.publications import Publication, publisher
from pillarbox.transports.templates import address

binary = publisher(address("{topic}", option="topic", transport="mqtt"), mode="binary")
structured = publisher(address("{topic}", option="topic", transport="mqtt"), mode="structured")


def unpacked(publication: Publication) -> Any:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.unpack(publication.properties)  # type: ignore[no-untyped-call]
    return properties


def test_the_driver_reads_what_was_packed() -> None:
    message = sample(key="Žižkov 🐟", subject="order/1", correlation_id="grüße", headers={"tenant": "shop-1"})
    publication = binary(message)
    properties = unpacked(publication)
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
    assert publication.body is message.payload


def test_structured_mode_has_the_attributes_in_the_body() -> None:
    message = sample()
    publication = structured(message)
    properties = unpacked(publication)
    assert properties.ContentType == STRUCTURED
    assert not hasattr(properties, "UserProperty")
    assert read({"content-type": STRUCTURED}, publication.body, binding=MQTT) == of(message)


@pytest.mark.parametrize("name", ["id", "TYPE", "time", "header-x", "traceparent", "tenant"])
def test_a_header_with_the_name_of_an_attribute_arrives_as_a_header(name: str) -> None:
    message = sample(headers={name: "mine"})
    publication = binary(message)
    pairs = {**dict(unpacked(publication).UserProperty), "content-type": "application/json"}
    assert read(pairs, publication.body, binding=MQTT) == of(message)


@pytest.mark.parametrize("count", [0, 1, 100, 127, 128, 16_000, 16_383, 16_384, 70_000, 2_097_152])
def test_the_size_is_that_of_the_packet(count: int) -> None:
    publication = binary(sample(payload=b"x" * count))
    assert publication.size == len(_driver_packet(publication))


def _driver_packet(publication: Publication) -> bytes:
    """What paho would write."""
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    packets: list[bytes] = []

    def queued(_command: int, packet: bytes, *_: object) -> int:
        packets.append(packet)
        return 0

    client._sock = object()  # type: ignore[assignment]  # only asked whether there is one
    client._packet_queue = queued  # type: ignore[method-assign,assignment]
    client._send_publish(
        1, publication.topic.encode(), publication.body, 1, False, False, None, Packed(publication.properties)
    )
    client._sock = None
    return packets[0]


@pytest.mark.parametrize("topic", ["orders/+", "orders/#", "#", "a\x00b", "a\nb", "x" * 65_536, "\ufffe", "\ud800"])
def test_a_topic_that_nobody_can_publish_to(topic: str) -> None:
    with pytest.raises(MessageRejected, match="none that MQTT can publish to"):
        binary(sample(topic=topic))


@pytest.mark.parametrize("topic", ["orders", "/", "a/b//c", "$aws/things", "Žižkov/🐟", "x" * 65_535])
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
