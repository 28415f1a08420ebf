"""CloudEvents, both modes and both directions, alone and against the official package."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cloudevents.core.bindings import amqp as official_amqp
from cloudevents.core.bindings import http as official_http
from cloudevents.core.bindings import kafka as official_kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as OfficialEvent
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.cloudevents import (
    AMQP,
    HTTP,
    KAFKA,
    MQTT,
    STRUCTURED,
    Binding,
    CloudEvent,
    from_binary,
    from_message,
    from_structured,
    read,
    to_binary,
    to_structured,
)
from pillarbox.context import current, handling
from pillarbox.errors import DecodeError
from pillarbox.message import MAX_TEXT, Kind, Message
from pillarbox.testing.samples import sample

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BINDINGS = [HTTP, KAFKA, AMQP, MQTT]

MESSAGE = Message(
    5,
    UUID("018f5f6e-7c6a-7000-8000-000000000001"),
    "billing",
    3,
    Kind.COMMAND,
    "orders.placed",
    "orders",
    "ключ 1%",
    b'{"a":1.10}',
    "application/json",
    {"x-tenant": "eu west", "traceparent": PARENT, "tracestate": "a=1"},
    "/shop",
    'sub"ject',
    "chain",
    "cause",
    datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
)

_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
_names = st.from_regex(r"x-[a-zA-Z0-9._-]{1,10}", fullmatch=True)
_values = st.from_regex(r"[!-~]([ -~]{0,10}[!-~])?", fullmatch=True)
_headers = st.dictionaries(_names, _values, max_size=3)
_traces = st.sampled_from([{}, {"traceparent": PARENT}, {"traceparent": PARENT, "tracestate": "a=1,b=2"}])
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))
_bodies = st.one_of(
    st.tuples(st.sampled_from(["application/json", "application/vnd.x+json; charset=utf-8"]), _json | st.binary()),
    st.tuples(st.just("application/json"), _json.map(lambda body: b" " + body + b"\n")),
    st.tuples(
        st.sampled_from(["text/plain", "text/csv; charset=latin-1"]),
        st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode),
    ),
    st.tuples(st.sampled_from(["application/octet-stream", "image/png"]), st.binary()),
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    content_type, payload = draw(_bodies)
    return Message(
        draw(st.integers(0, 9)),
        draw(st.uuids()),
        draw(st.sampled_from(["billing", "mail"])),
        draw(st.integers(0, 63)),
        draw(st.sampled_from(Kind)),
        draw(_texts),
        draw(_texts),
        draw(st.none() | _texts),
        payload,
        content_type,
        draw(_headers) | draw(_traces),
        draw(_texts),
        draw(st.none() | _texts),
        draw(_texts),
        draw(st.none() | _texts),
        draw(st.datetimes(timezones=st.just(UTC))),
    )


# --- our own round trip ------------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
@given(message=messages())
def test_binary_mode_brings_a_message_over_unchanged(binding: Binding, message: Message) -> None:
    headers, body = to_binary(message, binding=binding)
    assert body is message.payload
    event = from_binary(headers, body, binding=binding)
    assert event == from_message(message)
    assert read(headers, body, binding=binding) == event
    assert to_binary(event, binding=binding) == (headers, body)


@given(message=messages())
def test_http_headers_are_printable_ascii(message: Message) -> None:
    headers, _ = to_binary(message, binding=HTTP)
    for name, value in headers.items():
        if name.startswith("ce-"):
            assert value.isascii()
            assert value.isprintable()
            assert " " not in value
            assert '"' not in value


@given(message=messages())
def test_structured_mode_brings_a_message_over_unchanged(message: Message) -> None:
    document = to_structured(message)
    json.loads(document)
    event = from_structured(document)
    assert event == from_message(message)
    assert read({"Content-Type": f"{STRUCTURED}; charset=utf-8"}, document, binding=HTTP) == event
    assert to_structured(event) == document


def test_binary_mode_over_http_as_others_see_it() -> None:
    assert to_binary(MESSAGE, binding=HTTP) == (
        {
            "ce-specversion": "1.0",
            "ce-id": "018f5f6e-7c6a-7000-8000-000000000001",
            "ce-source": "/shop",
            "ce-type": "orders.placed",
            "ce-subject": "sub%22ject",
            "ce-time": "2026-01-02T03:04:05.000678Z",
            "ce-partitionkey": "%D0%BA%D0%BB%D1%8E%D1%87%201%25",
            "ce-correlationid": "chain",
            "ce-causationid": "cause",
            "ce-topic": "orders",
            "ce-kind": "command",
            "ce-traceparent": PARENT,
            "ce-tracestate": "a=1",
            "x-tenant": "eu west",
            "content-type": "application/json",
        },
        b'{"a":1.10}',
    )


def test_other_protocols_have_other_prefixes_and_no_percent_encoding() -> None:
    assert to_binary(MESSAGE, binding=KAFKA)[0]["ce_partitionkey"] == "ключ 1%"
    assert to_binary(MESSAGE, binding=AMQP)[0]["cloudEvents:partitionkey"] == "ключ 1%"


def test_structured_mode_as_others_see_it() -> None:
    document = to_structured(MESSAGE)
    assert json.loads(document) == {
        "specversion": "1.0",
        "id": "018f5f6e-7c6a-7000-8000-000000000001",
        "source": "/shop",
        "type": "orders.placed",
        "subject": 'sub"ject',
        "time": "2026-01-02T03:04:05.000678Z",
        "partitionkey": "ключ 1%",
        "correlationid": "chain",
        "causationid": "cause",
        "topic": "orders",
        "kind": "command",
        "traceparent": PARENT,
        "tracestate": "a=1",
        "datacontenttype": "application/json",
        "pillarboxheaders": '{"x-tenant":"eu west"}',
        "data": {"a": 1.1},
    }
    assert b'"data":{"a":1.10}' in document


@pytest.mark.parametrize(
    ("content_type", "payload", "expected"),
    [
        ("application/json", b"[1]", {"data": [1]}),
        ("application/x+json", b"null", {"data": None}),
        ("application/json", b"[1", {"data_base64": "WzE="}),
        ("application/json", b" [1]", {"data_base64": "IFsxXQ=="}),
        ("application/json", b'"\xff"', {"data_base64": "Iv8i"}),
        ("text/plain", "ö".encode(), {"data": "ö"}),
        ("text/plain; charset=utf-8", "ö".encode(), {"data": "ö"}),
        ("text/plain; charset=latin-1", "ö".encode(), {"data_base64": "w7Y="}),
        ("text/plain", b"\xff", {"data_base64": "/w=="}),
        ("image/png", b"abc", {"data_base64": "YWJj"}),
        ("application/json", b"", {}),
    ],
)
def test_data_or_base64_by_content_type(content_type: str, payload: bytes, expected: dict[str, object]) -> None:
    event = CloudEvent(
        message_id="1", source="/", type="t", topic="t", correlation_id="1", content_type=content_type, payload=payload
    )
    document = json.loads(to_structured(event))
    assert {
        name: value for name, value in document.items() if name.startswith("data") and "type" not in name
    } == expected


# --- foreign events ----------------------------------------------------------------------------


def test_an_event_without_our_extensions_gets_defaults() -> None:
    event = from_structured(
        b'{"specversion":"1.0","id":"not-a-uuid","source":"https://x","type":"com.x","data":{"a":1}}'
    )
    assert event == CloudEvent(
        message_id="not-a-uuid",
        source="https://x",
        type="com.x",
        kind=Kind.EVENT,
        topic="com.x",
        correlation_id="not-a-uuid",
        payload=b'{"a":1}',
        content_type="application/json",
    )
    assert event.event_time is None
    with handling(event):
        assert (current().correlation_id, current().causation_id) == ("not-a-uuid", "not-a-uuid")


def test_foreign_extensions_are_kept_as_text_and_written_again() -> None:
    document = (
        b'{"specversion":"1.0","id":"1","source":"/","type":"t","dataschema":"https://s","flag":true,"count":5,'
        b'"kind":"strange","empty":null}'
    )
    event = from_structured(document)
    assert event.extensions == {"dataschema": "https://s", "flag": "true", "count": "5", "kind": "strange"}
    assert event.kind is Kind.EVENT
    headers, _ = to_binary(event, binding=HTTP)
    assert (headers["ce-dataschema"], headers["ce-flag"], headers["ce-count"]) == ("https://s", "true", "5")


def test_binary_headers_as_protocols_bring_them() -> None:
    event = from_binary(
        {
            "CE-SpecVersion": "1.0",
            "Ce-Id": '"quo\\"ted%20id"',
            "ce-source": "/",
            "ce-type": '"t"',
            "Content-Type": "text/plain",
            "Host": "example.com",
            "Authorization": "Bearer hunter2",
            "Traceparent": PARENT,
            "X-Tenant": "eu",
        },
        b"hello",
        binding=HTTP,
    )
    assert (event.message_id, event.type) == ('quo"ted id', "t")
    assert event.headers == {"X-Tenant": "eu", "traceparent": PARENT}
    assert (event.content_type, event.payload) == ("text/plain", b"hello")


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_", "ce-"])
def test_every_prefix_that_is_written_to_rabbitmq_is_read(prefix: str) -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "t"}
    event = from_binary({prefix + name: value for name, value in attributes.items()}, b"", binding=AMQP)
    assert (event.message_id, event.source, event.type, dict(event.headers)) == ("1", "/shop", "t", {})


def test_bytes_numbers_times_and_tables_in_headers() -> None:
    event = from_binary(
        {
            "cloudEvents_specversion": b"1.0",
            "cloudEvents:id": 7,
            "cloudEvents:source": "/",
            "cloudEvents:type": bytearray(b"t"),
            "cloudEvents:time": 1_767_323_045_000,
            "cloudEvents:flag": False,
            "x-death": [{"count": 1}],
            "x-raw": b"\xff",
            "x-bell": "\a",
            "x-count": 3,
        },
        b"",
        binding=AMQP,
    )
    assert event.message_id == "7"
    assert event.event_time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert event.extensions == {"flag": "false"}
    assert event.headers == {"x-count": "3"}
    assert event.content_type == "application/octet-stream"


def test_an_attribute_beats_a_native_trace_header() -> None:
    other = PARENT.replace("0af7", "1af7")
    base = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/", "ce_type": "t"}
    for headers in ({"traceparent": other, "ce_traceparent": PARENT}, {"ce_traceparent": PARENT, "traceparent": other}):
        assert from_binary(base | headers, b"", binding=KAFKA).headers == {"traceparent": PARENT}


GOOD: dict[str, object] = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"specversion": None}, "version 1.0"),
        ({"specversion": "0.3"}, "version 1.0"),
        ({"id": None}, "has no id"),
        ({"id": ""}, "has no id"),
        ({"source": None}, "has no source"),
        ({"type": None}, "has no type"),
        ({"id": "nul\0"}, "attribute id .* control character"),
        ({"partitionkey": "\x7f"}, "attribute partitionkey .* control character"),
        ({"id": "x" * (MAX_TEXT + 1)}, "attribute id .* longer than"),
        ({"correlationid": "ö" * MAX_TEXT}, "attribute correlationid .* longer than"),
        ({"time": "yesterday"}, "RFC 3339"),
        ({"time": "2026-01-01T00:00:00"}, "RFC 3339"),
        ({"time": 5}, "RFC 3339"),
        ({"extra": [1]}, "attribute extra .* not text"),
        ({"extra": 1.5}, "attribute extra .* not text"),
        ({"data": 1, "data_base64": "AA=="}, "both data and data_base64"),
        ({"data_base64": "?"}, "not a CloudEvent"),
        ({"data_base64": 5}, "not a CloudEvent"),
        ({"pillarboxheaders": "{"}, "not a CloudEvent"),
        ({"pillarboxheaders": '{"a":1}'}, "not a CloudEvent"),
    ],
)
def test_what_is_no_cloudevent_is_a_decode_error(changes: dict[str, object], reason: str) -> None:
    document = {name: value for name, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(DecodeError, match=reason):
        from_structured(json.dumps(document).encode())
    if "data" in "".join(changes) or "headers" in "".join(changes) or changes.get("extra") == 1.5:
        return
    with pytest.raises(DecodeError, match=reason):
        from_binary({f"ce_{name}": value for name, value in document.items()}, b"", binding=KAFKA)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"5", b"\xff", b'{"id":' + b"[" * 5_000])
def test_what_is_no_document_is_a_decode_error(document: bytes) -> None:
    with pytest.raises(DecodeError, match="not a CloudEvent"):
        from_structured(document)


@pytest.mark.parametrize("value", ["%ff", "%C3"])
def test_percent_encoding_must_be_utf_8(value: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": value, "ce-source": "/", "ce-type": "t"}
    with pytest.raises(DecodeError, match="percent-encoded"):
        from_binary(headers, b"", binding=HTTP)


def test_raw_bytes_that_a_server_escaped_are_a_decode_error() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": b"\xff".decode(errors="surrogateescape"),
        "ce-source": "/",
        "ce-type": "t",
    }
    with pytest.raises(DecodeError, match="attribute id"):
        from_binary(headers, b"", binding=HTTP)


def test_a_time_beyond_the_calendar_is_a_decode_error() -> None:
    headers = {
        "cloudEvents:specversion": "1.0",
        "cloudEvents:id": "1",
        "cloudEvents:source": "/",
        "cloudEvents:type": "t",
    }
    with pytest.raises(DecodeError, match="attribute time"):
        from_binary(headers | {"cloudEvents:time": 10**18}, b"", binding=AMQP)


def test_batches_are_not_read() -> None:
    with pytest.raises(DecodeError, match="cloudevents-batch"):
        read({"content-type": "application/cloudevents-batch+json"}, b"[]", binding=HTTP)


@given(
    headers=st.dictionaries(
        st.text(max_size=12) | st.sampled_from(["ce-id", "ce-time", "ce-type"]), st.text() | st.binary()
    )
)
def test_reading_anything_is_an_event_or_a_decode_error(headers: dict[str, Any]) -> None:
    given = {"ce-specversion": "1.0", "ce-source": "/", **headers}
    with suppress(DecodeError):
        event = read(given, b"{}", binding=HTTP)
        assert from_structured(to_structured(event)) == event
    with pytest.raises(DecodeError):
        read(given | {"content-type": STRUCTURED}, b"{}", binding=HTTP)


@given(document=st.binary() | _json)
def test_reading_any_document_is_an_event_or_a_decode_error(document: bytes) -> None:
    with pytest.raises(DecodeError):
        from_structured(document)


# --- against the official package --------------------------------------------------------------


@given(message=messages())
def test_the_official_package_reads_our_binary_http(message: Message) -> None:
    headers, body = to_binary(message, binding=HTTP)
    event = official_http.from_binary(official_http.HTTPMessage(headers, body), JSONFormat())
    check_official(event, message)


@given(message=messages())
def test_the_official_package_reads_our_binary_kafka(message: Message) -> None:
    headers, body = to_binary(message, binding=KAFKA)
    encoded = {name: value.encode() for name, value in headers.items()}
    event = official_kafka.from_binary(official_kafka.KafkaMessage(encoded, None, body), JSONFormat())
    check_official(event, message)


@given(message=messages())
def test_the_official_package_reads_our_structured_mode(message: Message) -> None:
    document = official_http.HTTPMessage({"content-type": STRUCTURED}, to_structured(message))
    event = official_http.from_http(document, JSONFormat())
    check_official(event, message)
    data = event.get_data()
    if isinstance(data, bytes):
        assert data == message.payload
    elif message.content_type.startswith("text/"):
        assert data == (message.payload.decode() or None)
    elif message.payload:
        assert data == json.loads(message.payload)


def check_official(event: Any, message: Message) -> None:
    assert event.get_id() == str(message.message_id)
    assert event.get_source() == message.source
    assert event.get_type() == message.type
    assert event.get_subject() == message.subject
    assert event.get_time() == message.event_time
    assert event.get_datacontenttype() == message.content_type
    for name, value in (
        ("partitionkey", message.key),
        ("correlationid", message.correlation_id),
        ("causationid", message.causation_id),
        ("topic", message.topic),
        ("kind", message.kind.value),
        ("traceparent", message.headers.get("traceparent")),
        ("tracestate", message.headers.get("tracestate")),
    ):
        assert event.get_extension(name) == value


_attributes = st.fixed_dictionaries(
    {
        "id": _texts,
        "source": _texts,
        "type": _texts,
        "time": st.datetimes(timezones=st.just(UTC), min_value=datetime(1971, 1, 1)),  # noqa: DTZ001
    },
    optional={"subject": _texts, "partitionkey": _texts, "tenant": _texts, "dataschema": _texts},
)
_data = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.booleans(), max_size=3)


def official(attributes: dict[str, Any], data: Any) -> OfficialEvent:
    return OfficialEvent({**attributes, "datacontenttype": "application/json"}, data)


def check_ours(event: CloudEvent, attributes: dict[str, Any], data: Any, *, within: timedelta = timedelta(0)) -> None:
    assert (event.message_id, event.source, event.type) == (attributes["id"], attributes["source"], attributes["type"])
    assert event.event_time is not None
    assert abs(event.event_time - attributes["time"]) <= within
    assert (event.subject, event.key) == (attributes.get("subject"), attributes.get("partitionkey"))
    assert event.extensions == {name: attributes[name] for name in ("tenant", "dataschema") if name in attributes}
    assert (event.topic, event.correlation_id) == (event.type, event.message_id)
    assert msgspec.json.decode(event.payload) == data


@given(attributes=_attributes, data=_data)
def test_we_read_binary_http_of_the_official_package(attributes: dict[str, Any], data: Any) -> None:
    sent = official_http.to_binary(official(attributes, data), JSONFormat())
    check_ours(read(sent.headers, sent.body, binding=HTTP), attributes, data)


@given(attributes=_attributes, data=_data)
def test_we_read_binary_kafka_of_the_official_package(attributes: dict[str, Any], data: Any) -> None:
    sent = official_kafka.to_binary(official(attributes, data), JSONFormat())
    check_ours(read(sent.headers, sent.value, binding=KAFKA), attributes, data)


@given(attributes=_attributes, data=_data)
def test_we_read_binary_amqp_of_the_official_package(attributes: dict[str, Any], data: Any) -> None:
    sent = official_amqp.to_binary(official(attributes, data), JSONFormat())
    headers = {**sent.application_properties, "content-type": sent.properties["content-type"]}
    # Its times are milliseconds.
    check_ours(read(headers, sent.application_data, binding=AMQP), attributes, data, within=timedelta(milliseconds=1))


@given(attributes=_attributes, data=_data)
def test_we_read_structured_mode_of_the_official_package(attributes: dict[str, Any], data: Any) -> None:
    sent = official_http.to_structured(official(attributes, data), JSONFormat())
    check_ours(read(sent.headers, sent.body, binding=HTTP), attributes, data)


@given(attributes=_attributes, data=st.binary(min_size=1))
def test_we_read_binary_data_in_structured_mode_of_the_official_package(
    attributes: dict[str, Any], data: bytes
) -> None:
    event = OfficialEvent({**attributes, "datacontenttype": "image/png"}, data)
    sent = official_http.to_structured(event, JSONFormat())
    assert read(sent.headers, sent.body, binding=HTTP).payload == data


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
@pytest.mark.parametrize("is_structured", [False, True])
def test_a_time_that_utc_does_not_have_is_refused(time: str, is_structured: bool) -> None:
    headers, body = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-time": time}, b""
    if is_structured:
        body = msgspec.json.encode({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": time})
        headers = {"content-type": "application/cloudevents+json"}
    with pytest.raises(DecodeError, match="years 1 to 9999"):
        read(headers, body, binding=HTTP)


def test_a_time_is_read_as_utc() -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    event = read({**headers, "ce-time": "2026-01-01T01:00:00+02:00"}, b"", binding=HTTP)
    assert event.event_time is not None
    assert event.event_time.isoformat() == "2025-12-31T23:00:00+00:00"


@pytest.mark.parametrize("payload", [b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_json_that_is_nested_too_deep_comes_over_in_base64(payload: bytes) -> None:
    message = sample(payload=payload, content_type="application/json")

    assert from_structured(to_structured(message)).payload == payload
