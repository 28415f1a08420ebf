"""Messages as they go over the wire to NATS."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from pillarbox.brokers.nats.encoding import MAX_SUBJECT, EncodedMessage, Encoder, is_pattern, is_subject
from pillarbox.brokers.templates import compile_template
from pillarbox.cloudevents import NATS, from_message, read, to_binary
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.testing.samples import sample

MIB = 1024 * 1024
BINARY = Encoder(subject=lambda message: message.topic)
STRUCTURED = msgspec.structs.replace(BINARY, mode="structured")


def encode(message: Message, encoder: Encoder = BINARY) -> EncodedMessage:
    return encoder.encode(message, limit=MIB)


def parse_headers(publication: EncodedMessage) -> dict[str, str]:
    """As a client reads them."""
    assert publication.headers.startswith(b"NATS/1.0\r\n")
    assert publication.headers.endswith(b"\r\n\r\n")
    return Client._parse_header_lines(publication.headers.removeprefix(b"NATS/1.0\r\n"))


_texts = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), min_size=1, max_size=20)


@given(key=st.none() | _texts, subject=st.none() | _texts, causation=st.none() | _texts, source=_texts)
def test_a_publication_is_what_the_binding_says(
    key: str | None, subject: str | None, causation: str | None, source: str
) -> None:
    headers = {"tenant": "a b", "traceparent": "00-1-2-01"}
    message = sample(key=key, subject=subject, causation_id=causation, source=source, headers=headers)
    expected, body = to_binary(message, binding=NATS)
    publication = encode(message)
    found = parse_headers(publication)
    own = {"Nats-Msg-Id": str(message.message_id), "ce-datacontenttype": "application/json", "traceparent": "00-1-2-01"}
    assert found == {**expected, **own}
    assert publication.payload == body
    got = read(found, body, binding=NATS)
    ours = from_message(message)
    assert (got.key, got.subject, got.causation_id, got.source) == (ours.key, ours.subject, ours.causation_id, source)


def test_structured_mode_is_one_document() -> None:
    message = sample(headers={"tenant": "a", "traceparent": "00-1-2-01"})
    publication = encode(message, STRUCTURED)
    found = parse_headers(publication)
    assert found == {
        "Nats-Msg-Id": str(message.message_id),
        "content-type": "application/cloudevents+json",
        "traceparent": "00-1-2-01",
    }
    assert read(found, publication.payload, binding=NATS).message_id == str(message.message_id)


def test_the_expected_stream_goes_with_it() -> None:
    encoder = msgspec.structs.replace(BINARY, stream="ORDERS")
    assert parse_headers(encode(sample(), encoder))["Nats-Expected-Stream"] == "ORDERS"


def test_the_command_counts_bytes() -> None:
    publication = encode(sample(topic="grüße", payload="ž".encode()))
    line, _, rest = publication.build_frame("_INBOX.x.1.2").partition(b"\r\n")
    head = len(publication.headers)
    assert line == f"HPUB grüße _INBOX.x.1.2 {head} {head + 2}".encode()
    assert rest == publication.headers + "ž".encode() + b"\r\n"


@pytest.mark.parametrize("name", ["Nats-Rollup", "nats-msg-id", "ce-id", "Content-Type", "a b", "a:b", "a\r\nb", ""])
def test_a_header_that_would_change_the_publish_is_rejected(name: str) -> None:
    with pytest.raises(MessageRejected, match="header"):
        encode(sample(headers={name: "x"}))


@pytest.mark.parametrize("value", ["a\r\nNats-Rollup: all", "a\n", "a\rb"])
def test_a_header_with_a_line_break_is_rejected(value: str) -> None:
    with pytest.raises(MessageRejected, match="line break"):
        encode(sample(headers={"tenant": value}))
    with pytest.raises(MessageRejected, match="line break"):
        encode(sample(content_type=value))


@pytest.mark.parametrize("field", ["key", "subject", "source", "correlation_id", "causation_id", "type"])
def test_an_attribute_cannot_break_out(field: str) -> None:
    message = msgspec.structs.replace(sample(), **{field: "a\r\nNats-Rollup: all"})
    assert "Nats-Rollup" not in parse_headers(encode(message))


def test_headers_count_towards_the_limit() -> None:
    message = sample(payload=b"x" * 100)
    size = encode(message).size
    assert BINARY.encode(message, limit=size).size == size
    with pytest.raises(MessageRejected, match=f"{size} bytes, and the server takes at most {size - 1}"):
        BINARY.encode(message, limit=size - 1)


@pytest.mark.parametrize("subject", ["orders", "orders.eu", "$x._y-z", "grüße.日本", "a*b", "a.>b", "x" * MAX_SUBJECT])
def test_subjects(subject: str) -> None:
    assert is_subject(subject)


@pytest.mark.parametrize(
    "subject", ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB b 0", "*", "a.*", "a.*.b", ">", "a.>", "x" * 3501]
)
def test_no_subjects(subject: str) -> None:
    assert not is_subject(subject)
    with pytest.raises(MessageRejected, match="subject"):
        encode(sample(topic=subject))


def test_patterns() -> None:
    assert all(is_pattern(pattern) for pattern in ("a", "a.*", "a.>", ">"))
    assert not any(is_pattern(pattern) for pattern in ("", "a..b", "a b", "a."))


def test_a_template_can_need_what_a_message_lacks() -> None:
    encoder = msgspec.structs.replace(
        BINARY, subject=compile_template("{topic}.{key}", option="subject", transport="nats")
    )
    assert encode(sample(key="k"), encoder).subject == "orders.k"
    with pytest.raises(MessageRejected, match="no key"):
        encode(sample(key=None), encoder)
