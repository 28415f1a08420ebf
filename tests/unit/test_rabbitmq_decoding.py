"""Foreign bytes: what other producers wrote is read as far as it goes, and a server that breaks the rules is left."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from cloudevents.core.bindings import rabbitmq as official_rabbitmq
from cloudevents.core.v1.event import CloudEvent as OfficialEvent
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from pillarbox.brokers.rabbitmq.amqp import (
    ACK,
    BODY,
    FRAME_MAX,
    HEADER,
    METHOD,
    NACK,
    Delivery,
    DeliveryReader,
    FieldTable,
    Properties,
    encode_queue_bind,
    encode_queue_declare,
    read_confirm,
    read_content_header,
    read_method,
    split_frames,
)
from pillarbox.brokers.rabbitmq.connection import Connection, ConnectionParameters
from pillarbox.brokers.rabbitmq.encoding import to_incoming
from pillarbox.brokers.rabbitmq.errors import Broken, NotAmqp
from pillarbox.brokers.settings import Login
from pillarbox.decoding import decode_incoming, encode_incoming, to_cloudevent

CONTENT_TYPE, HEADERS, CORRELATION_ID, MESSAGE_ID, TIMESTAMP, TYPE = 1 << 15, 1 << 13, 1 << 10, 1 << 7, 1 << 6, 1 << 5
LAST_SECOND = 253_402_300_799
"""Of the year 9999."""


def short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def table(*fields: bytes) -> bytes:
    content = b"".join(fields)
    return len(content).to_bytes(4) + content


def text(name: bytes, value: bytes) -> bytes:
    return short(name) + b"S" + len(value).to_bytes(4) + value


def header(flags: int, *properties: bytes, size: int = 0) -> bytes:
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(properties)


def properties(flags: int, *values: bytes) -> Properties:
    return read_content_header(header(flags, *values))[1]


def headers(*fields: bytes) -> dict[str, Any]:
    found = properties(HEADERS, table(*fields)).headers
    assert found is not None
    return found


# --- properties ----------------------------------------------------------------------------------


def test_everything_that_an_independent_client_writes_is_read() -> None:
    at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    fields: FieldTable = {
        "text": "žluť", "number": -7, "large": 1 << 40, "yes": True, "nothing": None, "at": at, "share": 0.5,
        "price": Decimal("12.50"), "bytes": bytearray(b"\x00"), "list": [1, "a", {"b": [2]}],
        "table": {"c": {"d": "e"}},
    }  # fmt: skip
    sent = commands.Basic.Properties(
        content_type="a", content_encoding="b", headers=fields, delivery_mode=2, priority=3, correlation_id="c",
        reply_to="d", expiration="5", message_id="e", timestamp=at, message_type="f", user_id="g", app_id="h",
    )  # fmt: skip
    size, found = read_content_header(ContentHeader(0, 12, sent).marshal())
    assert size == 12
    assert found == Properties(
        content_type="a", content_encoding="b", headers={**fields, "bytes": b"\x00"}, delivery_mode=2, priority=3,
        correlation_id="c", reply_to="d", expiration="5", message_id="e", timestamp=at, type="f", user_id="g",
        app_id="h",
    )  # fmt: skip


def test_a_property_that_is_not_utf8_has_replacement_characters_and_its_neighbours_are_untouched() -> None:
    found = properties(CONTENT_TYPE | CORRELATION_ID | TYPE, short(b"text/\xff"), short(b"caf\xe9"), short(b"order"))
    assert (found.content_type, found.correlation_id, found.type) == ("text/�", "caf�", "order")


def test_an_event_of_the_official_sdk_keeps_its_identity() -> None:
    """Its binding for RabbitMQ writes the prefix `ce-`. By a random id the inbox would recognise no repeat."""
    attributes = {"id": "order-7", "source": "/shop", "type": "orders.placed", "datacontenttype": "application/json"}
    message = official_rabbitmq.to_binary_event(OfficialEvent(attributes=attributes, data={"order": 7}))
    wrapped = Properties(content_type=message.content_type, headers=dict(message.headers))
    event = to_cloudevent(to_incoming(Delivery(1, False, "k", wrapped, message.body), queue="q", token=None))
    assert (event.message_id, event.source, event.type) == ("order-7", "/shop", "orders.placed")
    assert (event.content_type, event.headers) == ("application/json", {})


def test_ids_that_are_not_utf8_stay_different_and_can_be_kept() -> None:
    """If both became the same text, the inbox would take the second message for a repeat of the first."""
    first, second = (
        to_incoming(Delivery(1, False, "k", properties(MESSAGE_ID, short(raw)), b""), queue="q", token=None)
        for raw in (b"id-\xff", b"id-\xfe")
    )
    assert first.fallback.message_id.startswith("sha256:")
    assert first.fallback.message_id != second.fallback.message_id
    assert first.headers["message-id"] == "id-�"
    to_cloudevent(first).headers["message-id"].encode()


def test_headers_that_are_not_utf8_keep_their_bytes_and_their_neighbours() -> None:
    found = headers(text(b"a", b"good"), text(b"b", b"\xff\xfe"), text(b"n\xe9", b"name"), text(b"c", b"good too"))
    assert found == {"a": "good", "b": b"\xff\xfe", "n�": "name", "c": "good too"}


@pytest.mark.parametrize("count", [LAST_SECOND * 1_000 + 1_000, 1 << 63, (1 << 64) - 1])
def test_an_impossible_time_is_left_out(count: int) -> None:
    found = properties(MESSAGE_ID | TIMESTAMP | TYPE, short(b"m-1"), count.to_bytes(8), short(b"order"))
    assert (found.message_id, found.timestamp, found.type) == ("m-1", None, "order")
    assert headers(short(b"at") + b"T" + count.to_bytes(8), text(b"a", b"good")) == {"at": None, "a": "good"}


def test_a_time_in_milliseconds_is_one() -> None:
    at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert properties(TIMESTAMP, int(at.timestamp() * 1_000).to_bytes(8)).timestamp == at


def test_a_field_of_an_unknown_type_ends_its_table_and_nothing_else() -> None:
    odd = text(b"a", b"good") + short(b"b") + b"?" + text(b"c", b"cannot be found")
    found = properties(HEADERS | MESSAGE_ID, table(short(b"inner") + b"F" + table(odd), text(b"d", b"e")), short(b"m"))
    assert found.headers == {"inner": {"a": "good"}, "d": "e"}
    assert found.message_id == "m"
    assert headers(short(b"list") + b"A" + table(b"t\x01", b"?"), text(b"d", b"e")) == {"list": [True], "d": "e"}


def test_fields_that_are_cut_off_are_left_out() -> None:
    assert headers(text(b"a", b"good"), short(b"b") + b"S\xff\xff\xff\xffx") == {"a": "good"}
    assert headers(text(b"a", b"good"), b"\xffb") == {"a": "good"}
    assert headers(text(b"a", b"good"), short(b"b") + b"l\x00") == {"a": "good"}


def test_properties_that_are_cut_off_are_left_out() -> None:
    assert properties(MESSAGE_ID | TYPE, short(b"m-1"), b"\xffx") == Properties(message_id="m-1")
    assert properties(CONTENT_TYPE | HEADERS, short(b"a"), b"\xff\xff\xff\xff") == Properties(content_type="a")


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_tables_without_end_are_read_to_some_depth(kind: bytes) -> None:
    """A frame has room for thousands of them, and Python's stack has not."""
    content, name = b"", short(b"a") if kind == b"F" else b""
    for _ in range(5_000):
        content = name + kind + table(content)
    found = headers(short(b"deep") + b"F" + table(content if name else short(b"a") + content), text(b"b", b"good"))
    assert found["b"] == "good"
    assert found["deep"]["a"]


def test_a_header_without_a_size_is_not_amqp() -> None:
    with pytest.raises(NotAmqp):
        read_content_header(b"\x00\x3c\x00\x00\x00")


@given(st.binary(max_size=200), st.integers(0, 0xFFFF))
def test_no_properties_break_anything(content: bytes, flags: int) -> None:
    size, found = read_content_header(header(flags, content, size=9))
    assert size == 9
    received = to_incoming(Delivery(1, False, "k", found, b""), queue="q", token=None)
    assert decode_incoming(encode_incoming(received)).fallback == received.fallback


@given(st.binary(max_size=200))
def test_no_table_breaks_what_stands_behind_it(content: bytes) -> None:
    assert properties(HEADERS | MESSAGE_ID, table(content), short(b"m-1")).message_id == "m-1"


# --- deliveries ----------------------------------------------------------------------------------

DELIVER = b"\x00\x3c\x00\x3c"


def deliver(tag: int, *, redelivered: bool = False, routing_key: bytes = b"orders") -> bytes:
    return DELIVER + short(b"consumer") + tag.to_bytes(8) + bytes([redelivered]) + short(b"shop") + short(routing_key)


def test_a_delivery_is_put_together_from_its_frames() -> None:
    reader = DeliveryReader()
    sent = marshal(commands.Basic.Deliver("c", 7, True, "shop", "orders.eu"), 1)
    sent += marshal(ContentHeader(0, 5, commands.Basic.Properties(message_id="m-1")), 1)
    sent += marshal(ContentBody(b"he"), 1) + marshal(ContentBody(b"llo"), 1)
    *incomplete, whole = [reader.read(kind, payload) for kind, _, payload in split_frames(bytearray(sent))]
    assert incomplete == [None] * 3
    # 14 bytes before the properties, which are one short text.
    assert whole == Delivery(7, True, "orders.eu", Properties(message_id="m-1"), b"hello", header_size=14 + 1 + 3)
    assert whole.size == 23


def test_an_empty_body_has_no_frame() -> None:
    reader = DeliveryReader()
    for tag in (1, 2):
        assert reader.read(METHOD, deliver(tag)) is None
        size = len(header(0))
        assert reader.read(HEADER, header(0)) == Delivery(tag, False, "orders", Properties(), b"", header_size=size)


def test_a_routing_key_that_is_not_utf8_has_replacement_characters() -> None:
    reader = DeliveryReader()
    reader.read(METHOD, deliver(3, routing_key=b"caf\xe9"))
    delivery = reader.read(HEADER, header(0))
    assert delivery is not None
    assert (delivery.tag, delivery.routing_key) == (3, "caf�")


@pytest.mark.parametrize(
    "frames",
    [
        [(HEADER, header(0))],
        [(BODY, b"x")],
        [(METHOD, deliver(1)), (METHOD, deliver(2))],
        [(METHOD, deliver(1)), (BODY, b"x")],
        [(METHOD, deliver(1)), (HEADER, header(0, size=2)), (HEADER, header(0, size=2))],
        [(METHOD, deliver(1)), (HEADER, header(0, size=2)), (BODY, b"xyz")],
        [(METHOD, deliver(1)[:12])],
        [(METHOD, deliver(1)[:-1])],
    ],
)
def test_parts_out_of_turn_are_not_amqp(frames: list[tuple[int, bytes]]) -> None:
    reader = DeliveryReader()
    with pytest.raises(NotAmqp):
        _ = [reader.read(kind, payload) for kind, payload in frames]


def test_the_reason_of_a_close_may_be_cut_in_the_middle_of_a_letter() -> None:
    """RabbitMQ cuts long ones after some byte."""
    frame = read_method(b"\x00\x14\x00\x28\x01\x94" + short("ž".encode()[:1] + b"...") + b"\x00\x00\x00\x00")
    assert isinstance(frame, commands.Channel.Close)
    assert (frame.reply_code, frame.reply_text) == (404, "�...")


@pytest.mark.parametrize("payload", [ACK, NACK + b"\x00" * 8])
def test_a_confirm_that_is_cut_off_is_not_amqp(payload: bytes) -> None:
    with pytest.raises(NotAmqp):
        read_confirm(payload)


def test_queues_are_declared_durable_and_bound() -> None:
    def read(data: bytes) -> Any:
        ((_, _, payload),) = split_frames(bytearray(data))
        return read_method(payload)

    frame = read(encode_queue_declare(1, "žluť", arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}))
    assert (frame.queue, frame.passive, frame.durable, frame.exclusive, frame.auto_delete) == (
        "žluť", False, True, False, False
    )  # fmt: skip
    assert frame.arguments == {"x-queue-type": "quorum", "x-delivery-limit": -1}
    frame = read(encode_queue_bind(1, "žluť", "shop", "eu.#"))
    assert (frame.queue, frame.exchange, frame.routing_key) == ("žluť", "shop", "eu.#")


# --- a server that breaks the rules --------------------------------------------------------------


def test_a_frame_above_the_agreed_size_is_refused_before_it_has_come() -> None:
    start = struct.Struct(">BHL")
    assert list(split_frames(bytearray(start.pack(BODY, 1, 4_096 - 8) + b"x" * 4_088 + b"\xce"), frame_max=4_096))
    with pytest.raises(NotAmqp, match="a frame of 4097 bytes, and at most 4096 were agreed on"):
        list(split_frames(bytearray(start.pack(BODY, 1, 4_096 - 7) + b"x"), frame_max=4_096))


def test_a_frame_with_a_wrong_end_is_refused_and_those_before_it_are_not() -> None:
    good, bad = marshal(ContentBody(b"good"), 1), marshal(ContentBody(b"bad"), 1)[:-1] + b"\x00"
    frames = split_frames(bytearray(good + bad))
    assert next(frames) == (BODY, 1, b"good")
    with pytest.raises(NotAmqp, match="does not end where it should"):
        next(frames)


class Server:
    """A broker that proposes a size of frames, and sends what the test tells it to once a connection is open."""

    def __init__(self, frame_max: int) -> None:
        self.frame_max = frame_max
        self.agreed = 0
        self.then = b""
        self.is_done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self._answer(reader, writer)
        writer.close()
        self.is_done.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        buffer = bytearray()
        answers = iter([commands.Connection.Tune(0, self.frame_max, 60), None, commands.Connection.OpenOk()])
        writer.write(marshal(commands.Connection.Start(server_properties={}), 0))
        while chunk := await reader.read(4_096):
            buffer += chunk
            for kind, _, payload in split_frames(buffer):
                if kind != METHOD:
                    continue
                frame = read_method(payload)
                if isinstance(frame, commands.Connection.TuneOk):
                    self.agreed = frame.frame_max or 0
                if answer := next(answers, None):
                    writer.write(marshal(answer, 0))
                if isinstance(frame, commands.Connection.Open):
                    writer.write(self.then)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Connection]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        to = ConnectionParameters(host="127.0.0.1", port=port, vhost="/", login=Login("guest", "guest"))
        connection = None
        try:
            connection = await Connection.open(to)
            yield connection
        finally:
            if connection is not None:
                await connection.close(seconds=0.1)
            await server.is_done.wait()


async def ended(connection: Connection) -> Exception:
    async with asyncio.timeout(10):
        while connection.reason is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return connection.reason


@pytest.mark.parametrize(("proposed", "agreed"), [(0, FRAME_MAX), (4_096, 4_096), (1 << 20, FRAME_MAX)])
async def test_the_smaller_size_of_frames_is_agreed_on(proposed: int, agreed: int) -> None:
    server = Server(proposed)
    async with connected(server) as connection:
        assert connection.frame_max == server.agreed == agreed


@pytest.mark.parametrize("proposed", [1, 4_095])
async def test_a_size_of_frames_below_what_amqp_allows_is_refused(proposed: int) -> None:
    with pytest.raises(NotAmqp, match=f"frames of at most {proposed} bytes, and AMQP allows no limit below 4096"):
        async with connected(Server(proposed)):
            pass


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack(">BHL", BODY, 1, 4_089) + b"x" * 4_089 + b"\xce", "a frame of 4097 bytes, and at most 4096"),
        (b"\x03\x00\x01\x00\x00\x00\x01x\x00", "a frame does not end where it should"),
    ],
)
async def test_a_frame_that_breaks_the_rules_ends_the_connection(frame: bytes, said: str) -> None:
    server = Server(4_096)
    server.then = frame
    async with connected(server) as connection:
        reason = await ended(connection)
        assert isinstance(reason, Broken)
        assert said in str(reason)


@pytest.mark.parametrize(
    ("flag", "count", "is_redelivered"), [(False, None, False), (True, None, True), (False, 0, False), (False, 1, True)]
)
def test_a_repeat_is_known_by_the_flag_or_by_the_count_of_a_quorum_queue(
    flag: bool, count: int | None, is_redelivered: bool
) -> None:
    properties = Properties(headers={} if count is None else {"x-delivery-count": count})
    received = to_incoming(Delivery(1, flag, "k", properties, b""), queue="q", token=None)
    assert received.redelivered is is_redelivered
