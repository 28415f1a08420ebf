"""What we pack is what an independent implementation of AMQP 0-9-1 unpacks, and the other way round."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes, marshal, unmarshal
from pamqp.header import ContentHeader

from pillarbox.brokers.rabbitmq import amqp as frames
from pillarbox.brokers.rabbitmq.amqp import read_method
from pillarbox.brokers.rabbitmq.errors import NotAmqp

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
FRAME_MAX = 4096


def read(data: bytes) -> list[FrameTypes]:
    found = []
    while data:
        size, channel, frame = unmarshal(data)
        assert channel == 1
        found.append(frame)
        data = data[size:]
    return found


def header_of(**given: object) -> ContentHeader:
    options = {
        "size": 3, "content_type": "text/plain", "headers": {}, "correlation_id": None, "message_id": "1", "at": None,
        "type": "t", **given,
    }  # fmt: skip
    header = frames.encode_properties(**options)  # type: ignore[arg-type]
    frame = read(b"".join(frames.encode_content(1, header, b"", frame_max=FRAME_MAX)))[0]
    assert isinstance(frame, ContentHeader)
    return frame


@given(exchange=TEXT, routing_key=TEXT)
def test_a_publish_is_mandatory_and_goes_where_it_should(exchange: str, routing_key: str) -> None:
    (frame,) = read(frames.encode_publish(1, exchange, routing_key))
    assert isinstance(frame, commands.Basic.Publish)
    assert (frame.exchange, frame.routing_key, frame.mandatory, frame.immediate) == (exchange, routing_key, True, False)


@given(
    headers=st.dictionaries(TEXT.filter(bool), TEXT, max_size=5),
    correlation_id=st.none() | TEXT,
    at=st.none() | st.integers(0, 2**31),
    type=TEXT,
    size=st.integers(0, 2**40),
)
def test_properties_arrive(
    headers: dict[str, str], correlation_id: str | None, at: int | None, type: str, size: int
) -> None:
    frame = header_of(headers=headers, correlation_id=correlation_id, at=at, type=type, size=size)
    found = frame.properties
    assert frame.body_size == size
    assert found.delivery_mode == 2
    assert (found.headers or {}) == headers
    assert (found.correlation_id, found.message_type, found.message_id) == (correlation_id, type, "1")
    assert (None if found.timestamp is None else int(found.timestamp.timestamp())) == at


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_is_split_into_frames_that_fit(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    packed = b"".join(frames.encode_content(1, frames.encode_properties(
        size=size, content_type="", headers={}, correlation_id=None, message_id="1", at=None, type=""
    ), body, frame_max=FRAME_MAX))  # fmt: skip
    _, *bodies = read(packed)
    assert b"".join(frame.value for frame in bodies if isinstance(frame, ContentBody)) == body
    assert all(len(marshal(frame, 1)) <= FRAME_MAX for frame in bodies)


def test_what_is_too_long_for_amqp_is_said() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        frames.encode_publish(1, "x", "ž" * 128)
    with pytest.raises(ValueError, match="fit into a frame"):
        header_of(headers={"a": "x" * FRAME_MAX})


def test_exchanges_are_declared_durable() -> None:
    (frame,) = read(frames.encode_exchange_declare(1, "žluť", type="x-consistent-hash", passive=False))
    assert isinstance(frame, commands.Exchange.Declare)
    assert (frame.exchange, frame.exchange_type, frame.durable, frame.passive) == (
        "žluť", "x-consistent-hash", True, False
    )  # fmt: skip
    assert not frame.auto_delete
    assert not frame.internal
    (frame,) = read(frames.encode_exchange_declare(1, "x", passive=True))
    assert isinstance(frame, commands.Exchange.Declare)
    assert frame.passive


def test_a_queue_is_asked_for_and_not_made() -> None:
    (frame,) = read(frames.encode_queue_declare(1, "q"))
    assert isinstance(frame, commands.Queue.Declare)
    assert (frame.queue, frame.passive) == ("q", True)


@given(tag=st.integers(1, 2**62), multiple=st.booleans())
def test_confirms_are_read(tag: int, multiple: bool) -> None:
    buffer = bytearray(marshal(commands.Basic.Ack(tag, multiple), 1) + marshal(commands.Basic.Nack(tag, multiple), 1))
    (_, _, ack), (_, _, nack) = frames.split_frames(buffer)
    assert ack.startswith(frames.ACK)
    assert nack.startswith(frames.NACK)
    assert frames.read_confirm(ack) == frames.read_confirm(nack) == (tag, multiple)


@given(st.data())
def test_frames_come_out_whole_however_they_come_in(data: st.DataObject) -> None:
    sent = b"".join(marshal(commands.Basic.Ack(tag), 1) for tag in range(5)) + frames.HEARTBEAT_FRAME
    buffer, tags, start = bytearray(), [], 0
    while start < len(sent):
        end = start + data.draw(st.integers(1, len(sent)))
        buffer += sent[start:end]
        start = end
        tags += [
            frames.read_confirm(payload)[0] for kind, _, payload in frames.split_frames(buffer) if kind == frames.METHOD
        ]
    assert tags == [0, 1, 2, 3, 4]
    assert not buffer


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"\x01\x00\x01\x00\x00\x00\x01xy"]
)
def test_what_is_not_amqp_is_noticed(answer: bytes) -> None:
    with pytest.raises(NotAmqp):
        list(frames.split_frames(bytearray(answer)))


@pytest.mark.parametrize("payload", [b"", b"\x00\x3c\x00\xff", struct.pack(">HH", 20, 40) + b"\x01"])
def test_a_method_that_cannot_be_read_is_not_amqp(payload: bytes) -> None:
    with pytest.raises(NotAmqp):
        read_method(payload)


def test_a_body_that_is_announced_larger_than_any_message_is_refused() -> None:
    """Its frames would be collected without end."""
    deliver = commands.Basic.Deliver(consumer_tag="c", delivery_tag=1, exchange="", routing_key="q")
    for size, is_refused in ((frames.MAX_BODY, False), (frames.MAX_BODY + 1, True), (2**63, True)):
        reader = frames.DeliveryReader()
        reader.read(frames.METHOD, marshal(deliver, 1)[7:-1])
        header = marshal(ContentHeader(body_size=size), 1)[7:-1]
        if is_refused:
            with pytest.raises(NotAmqp, match="announced a message of"):
                reader.read(frames.HEADER, header)
        else:
            assert reader.read(frames.HEADER, header) is None
