"""Messages as SQS and SNS have them: a text of XML's characters, and at most ten attributes."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.aws.encoding import MessageContent, decode, encode_content
from pillarbox.cloudevents import STRUCTURED, from_message
from pillarbox.errors import DecodeError
from pillarbox.message import Kind, Message
from pillarbox.testing.samples import sample

MODES = ["binary", "structured"]
XML = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
messages = st.builds(
    sample,
    key=st.none() | texts,
    subject=st.none() | texts,
    causation_id=st.none() | texts,
    correlation_id=texts,
    kind=st.sampled_from(Kind),
    payload=st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")),
    content_type=st.sampled_from(["application/json", "text/plain", "application/octet-stream"]),
    headers=st.dictionaries(
        st.sampled_from(["tenant", "X-Empty", "id", "content-language"]), st.just("") | st.just("a b")
    ),
)


def usable(content: MessageContent) -> bool:
    """Whether SQS would take it."""
    return (
        len(content.attributes) <= 10
        and all(re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name) for name in content.attributes)
        and all(XML.fullmatch(text) for text in (content.text, *content.attributes.values()))
    )


@pytest.mark.parametrize("mode", MODES)
@given(message=messages)
def test_every_message_fits_and_comes_back_unchanged(mode: str, message: Message) -> None:
    content = encode_content(message, mode=mode)  # type: ignore[arg-type]
    assert usable(content)
    assert decode(content.text, content.attributes) == from_message(message)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["\ufffe", "\uffff", "a\ufffeb"])
def test_characters_that_xml_lacks(mode: str, text: str) -> None:
    for message in (
        sample(key=text, subject=text),
        sample(payload=f'{{"a": "{text}"}}'.encode()),
        sample(payload=text.encode(), content_type="text/plain"),
    ):
        content = encode_content(message, mode=mode)  # type: ignore[arg-type]
        assert usable(content)
        assert decode(content.text, content.attributes) == from_message(message)


def test_structured_is_one_document_with_copies_for_filters() -> None:
    message = sample(causation_id="cause", headers={"traceparent": PARENT, "tenant": "shop"})
    content = encode_content(message, mode="structured")
    assert msgspec.json.decode(content.text)["data"] == {"order_id": 1}
    assert content.attributes == {
        "content-type": STRUCTURED,
        "ce_id": str(message.message_id),
        "ce_source": "/shop",
        "ce_type": "orders.placed",
        "ce_topic": "orders",
        "ce_kind": "event",
        "ce_partitionkey": "customer-1",
        "ce_correlationid": str(message.message_id),
        "ce_causationid": "cause",
        "ce_traceparent": PARENT,
    }


def test_text_that_xml_has_is_sent_as_it_is() -> None:
    payload = '{"name": "Žofie 🐟"}'
    content = encode_content(sample(payload=payload.encode()), mode="structured")
    assert f'"data":{payload}' in content.text
    assert encode_content(sample(payload=payload.encode()), mode="binary").text == payload


def test_binary_has_the_rest_in_one_attribute() -> None:
    message = sample(subject="order/1", headers={"traceparent": PARENT, "tenant": "shop"})
    content = encode_content(message, mode="binary")
    assert content.text == '{"order_id": 1}'
    assert sorted(content.attributes) == [
        "ce_correlationid", "ce_id", "ce_partitionkey", "ce_source", "ce_time", "ce_traceparent", "ce_type",
        "content-type", "pillarbox",
    ]  # fmt: skip
    assert msgspec.json.decode(content.attributes["pillarbox"]) == {
        "ce_specversion": "1.0", "ce_subject": "order/1", "ce_topic": "orders", "ce_kind": "event", "tenant": "shop",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "text", "encoding"),
    [(b"", "-", "empty"), (b"\xff\x00", "/wA=", "base64"), (b"a\x00", "YQA=", "base64"), (b"-", "-", None)],
)
def test_payloads_that_are_no_text(payload: bytes, text: str, encoding: str | None) -> None:
    content = encode_content(sample(payload=payload, content_type="application/octet-stream"), mode="binary")
    assert (content.text, content.attributes.get("content-encoding")) == (text, encoding)


def test_the_size_is_counted_in_bytes() -> None:
    assert MessageContent("Ž", {"a": "🐟"}).size == 2 + len("a") + len("String") + 4


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("{", {"content-type": STRUCTURED}),
        ("?", {"content-encoding": "base64"}),
        ("x", {"pillarbox": "{"}),
        ("x", {"pillarbox": "[1]"}),
        ("x", {}),
    ],
)
def test_what_is_no_event(text: str, attributes: dict[str, str]) -> None:
    with pytest.raises(DecodeError):
        decode(text, attributes)
