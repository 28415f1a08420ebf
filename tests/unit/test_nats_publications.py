"""Messages as they go over the wire to NATS."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from pillarbox.cloudevents import NATS, of, read, to_binary
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from pillarbox.transports.nats.publications import Form, Publication
from pillarbox.transports.nats.subjects import LONGEST, is_pattern, is_subject
from pillarbox.transports.templates import address

MIB = 1024 * 1024
BINARY = Form(subject=lambda message: message.topic)
STRUCTURED = msgspec.structs.replace(BINARY, mode="structured")


def made(message: Message, form: Form = BINARY) -> Publication:
    return form.publication(message, limit=MIB)


def headers_of(publication: Publication) -> dict[str, str]:
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
    publication = made(message)
    found = headers_of(publication)
    own = {"Nats-Msg-Id": str(message.message_id), "ce-datacontenttype": "application/json", "traceparent": "00-1-2-01"}
    assert found == {**expected, **own}
    assert publication.payload == body
    got = read(found, body, binding=NATS)
    ours = of(message)
    assert (got.key, got.subject, got.causation_id, got.source) == (ours.key, ours.subject, ours.causation_id, source)


def test_structured_mode_is_one_document() -> None:
    message = sample(headers={"tenant": "a", "traceparent": "00-1-2-01"})
    publication = made(message, STRUCTURED)
    found = headers_of(publication)
    assert found == {
        "Nats-Msg-Id": str(message.message_id),
        "content-type": "application/cloudevents+json",
        "traceparent": "00-1-2-01",
    }
    assert read(found, publication.payload, binding=NATS).message_id == str(message.message_id)


def test_the_expected_stream_goes_with_it() -> None:
    form = msgspec.structs.replace(BINARY, stream="ORDERS")
    assert headers_of(made(sample(), form))["Nats-Expected-Stream"] == "ORDERS"


def test_the_command_counts_bytes() -> None:
    publication = made(sample(topic="grüße", payload="ž".encode()))
    line, _, rest = publication.frame("_INBOX.x.1.2").partition(b"\r\n")
    head = len(publication.headers)
    assert line == f"HPUB grüße _INBOX.x.1.2 {head} {head + 2}".encode()
    assert rest == publication.headers + "ž".encode() + b"\r\n"


@pytest.mark.parametrize("name", ["Nats-Rollup", "nats-msg-id", "ce-id", "Content-Type", "a b", "a:b", "a\r\nb", ""])
def test_a_header_that_would_change_the_publish_is_rejected(name: str) -> None:
    with pytest.raises(MessageRejected, match="header"):
        made(sample(headers={name: "x"}))


@pytest.mark.parametrize("value", ["a\r\nNats-Rollup: all", "a\n", "a\rb"])
def test_a_header_with_a_line_break_is_rejected(value: str) -> None:
    with pytest.raises(MessageRejected, match="line break"):
        made(sample(headers={"tenant": value}))
    with pytest.raises(MessageRejected, match="line break"):
        made(sample(content_type=value))


@pytest.mark.parametrize("field", ["key", "subject", "source", "correlation_id", "causation_id", "type"])
def test_an_attribute_cannot_break_out(field: str) -> None:
    message = msgspec.structs.replace(sample(), **{field: "a\r\nNats-Rollup: all"})
    assert "Nats-Rollup" not in headers_of(made(message))


def test_headers_count_towards_the_limit() -> None:
    message = sample(payload=b"x" * 100)
    size = made(message).size
    assert BINARY.publication(message, limit=size).size == size
    with pytest.raises(MessageRejected, match=f"{size} bytes, and the server takes at most {size - 1}"):
        BINARY.publication(message, limit=size - 1)


@pytest.mark.parametrize("subject", ["orders", "orders.eu", "$x._y-z", "grüße.日本", "a*b", "a.>b", "x" * LONGEST])
def test_subjects(subject: str) -> None:
    assert is_subject(subject)


@pytest.mark.parametrize(
    "subject", ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB b 0", "*", "a.*", "a.*.b", ">", "a.>", "x" * 3501]
)
def test_no_subjects(subject: str) -> None:
    assert not is_subject(subject)
    with pytest.raises(MessageRejected, match="subject"):
        made(sample(topic=subject))


def test_patterns() -> None:
    assert all(is_pattern(pattern) for pattern in ("a", "a.*", "a.>", ">"))
    assert not any(is_pattern(pattern) for pattern in ("", "a..b", "a b", "a."))


def test_a_template_can_need_what_a_message_lacks() -> None:
    form = msgspec.structs.replace(BINARY, subject=address("{topic}.{key}", option="subject", transport="nats"))
    assert made(sample(key="k"), form).subject == "orders.k"
    with pytest.raises(MessageRejected, match="no key"):
        made(sample(key=None), form)
