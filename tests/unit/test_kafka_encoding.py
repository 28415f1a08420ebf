"""What a message is on Kafka's wire."""

from __future__ import annotations

import msgspec
import pytest

from pillarbox.brokers.kafka.encoding import ConsumedRecord, decode, encode, is_topic_name
from pillarbox.brokers.kafka.offsets import PartitionProgress
from pillarbox.brokers.templates import compile_template
from pillarbox.cloudevents import KAFKA, from_message, read, to_binary
from pillarbox.decoding import to_cloudevent
from pillarbox.errors import DecodeError, MessageRejected
from pillarbox.message import Kind, Message
from pillarbox.testing.samples import sample

_TOPIC = compile_template("{topic}", option="topic", transport="kafka")
_TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
_MESSAGES = {
    "little": sample(key=None),
    "much": sample(
        key="Žižkov 50%", topic="orders.eu", kind=Kind.COMMAND, source="/shop/eu", subject="order/1",
        correlation_id="request-1", causation_id="message-0", headers={"tenant": "shop-1", **_TRACE},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _MESSAGES)
def test_a_record_is_what_the_binding_says(name: str) -> None:
    message = _MESSAGES[name]
    record = encode(message, topic=_TOPIC, mode="binary")
    headers, body = to_binary(message, binding=KAFKA)
    native = {name: value for name, value in record.headers if name not in _TRACE}
    assert (native, record.value) == (headers, body)
    assert (record.topic, record.key) == (message.topic, message.key)


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("name", _MESSAGES)
def test_a_record_can_be_read_back(name: str, mode: str) -> None:
    message = _MESSAGES[name]
    record = encode(message, topic=_TOPIC, mode="binary" if mode == "binary" else "structured")
    assert read(dict(record.headers), record.value, binding=KAFKA) == from_message(message)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_trace_is_where_consumers_look_for_it_too(mode: str) -> None:
    record = encode(_MESSAGES["much"], topic=_TOPIC, mode="binary" if mode == "binary" else "structured")
    assert _TRACE.items() <= dict(record.headers).items()


def test_a_name_that_kafka_cannot_have_is_rejected() -> None:
    message: Message = msgspec.structs.replace(sample(), topic="two words")
    with pytest.raises(MessageRejected, match="'two words' is no name for a Kafka topic"):
        encode(message, topic=_TOPIC, mode="binary")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("orders.eu-1_x", True), ("", False), (".", False), ("..", False), ("...", True), ("a b", False)],
)
def test_topic_names(name: str, is_one: bool) -> None:
    assert is_topic_name(name) is is_one


class Unreadable:
    """A record of the client, with a header whose name is not UTF-8: the client decodes it when it is asked."""

    def headers(self) -> object:
        return b"\xff".decode()

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"{}"


def test_a_record_whose_headers_the_client_cannot_read_is_delivered_and_is_no_event() -> None:
    progress = PartitionProgress("orders", 0, mark=0)
    received = decode(ConsumedRecord(progress, 7, Unreadable(), False), token=None)  # type: ignore[arg-type]
    assert (received.body, received.fallback.message_id) == (b"{}", "orders/0/7")
    with pytest.raises(DecodeError):
        to_cloudevent(received)
