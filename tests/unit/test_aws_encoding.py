"""Messages as SQS and SNS have them: content, names of targets, groups, and the calls that carry them."""

from __future__ import annotations

import hashlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.aws.encoding import (
    EncodedMessage,
    MessageContent,
    build_group_id,
    compile_target,
    decode,
    encode_content,
    find_fixed_target,
    find_target_of_topic,
    is_fifo,
    split_calls,
    split_rounds,
    to_name,
)
from pillarbox.cloudevents import STRUCTURED, from_message
from pillarbox.errors import DecodeError, MessageRejected
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


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("orders.placed", "orders-placed"),
        ("orders.placed.fifo", "orders-placed.fifo"),
        ("shop/eu:Žižkov", "shop-eu--i-kov"),
        ("a_b-C9", "a_b-C9"),
        ("x" * 80, "x" * 80),
        ("x" * 75 + ".fifo", "x" * 75 + ".fifo"),
    ],
)
def test_a_name(text: str, name: str) -> None:
    assert to_name(text, max_length=80) == name


@pytest.mark.parametrize("text", ["", ".fifo", "x" * 81, "x" * 76 + ".fifo"])
def test_no_name(text: str) -> None:
    with pytest.raises(MessageRejected, match="1 to 80"):
        to_name(text, max_length=80)


def test_of_a_url_or_an_arn_only_the_last_part_is_a_name() -> None:
    url = compile_target("https://sqs.example/123/shop.{topic}", option="queue_url", transport="sqs", max_length=80)
    assert url(sample(topic="orders.placed")) == "https://sqs.example/123/shop-orders-placed"
    arn = compile_target(
        "arn:aws:sns:eu-central-1:123:{topic}.fifo", option="topic_arn", transport="sns", max_length=256
    )
    assert arn(sample(topic="orders.placed")) == "arn:aws:sns:eu-central-1:123:orders-placed.fifo"


def test_fixed_targets() -> None:
    assert find_fixed_target("shop.orders", max_length=80) == "shop-orders"
    assert find_fixed_target("{topic}", max_length=80) is None
    assert find_target_of_topic("shop-{topic}.fifo", "orders.placed", max_length=80) == "shop-orders-placed.fifo"
    assert find_target_of_topic("{key}", "orders", max_length=80) is None
    assert is_fifo("orders.fifo")
    assert not is_fifo("orders-fifo")


@pytest.mark.parametrize("key", ["customer-1", "!~/:.", "x" * 128])
def test_a_key_is_its_group(key: str) -> None:
    assert build_group_id(sample(key=key)) == key


@pytest.mark.parametrize("key", ["Žižkov", "a b", "x" * 129])
def test_a_key_that_is_no_group_is_hashed(key: str) -> None:
    assert build_group_id(sample(key=key)) == hashlib.sha256(key.encode()).hexdigest()


def test_without_a_key_each_message_is_its_own_group() -> None:
    message = sample(key=None)
    assert build_group_id(message) == str(message.message_id)


# --- calls -------------------------------------------------------------------------------------------

encoded = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from(["a", "b", "c", None]), st.integers(1, 40)), max_size=60
).map(lambda many: [EncodedMessage(n, target, key, {}, size) for n, (target, key, size) in enumerate(many)])


@given(encoded)
def test_every_message_goes_once_and_no_key_twice_in_a_round(many: list[EncodedMessage]) -> None:
    cut = list(split_rounds(many))
    assert [one for group in cut for one in group] == many
    for group in cut:
        keys = [(one.target, one.key) for one in group if one.key is not None]
        assert len(keys) == len(set(keys))


@given(encoded)
def test_a_call_is_one_target_and_ten_messages_and_so_many_bytes(many: list[EncodedMessage]) -> None:
    made = list(split_calls(many, max_bytes=50))
    assert sorted(one.index for call in made for one in call) == list(range(len(many)))
    for call in made:
        assert len({one.target for one in call}) == 1
        assert len(call) <= 10
        assert len(call) == 1 or sum(one.size for one in call) <= 50
        assert [one.index for one in call] == sorted(one.index for one in call)


def test_as_few_calls_as_can_be() -> None:
    many = [EncodedMessage(n, "p", None, {}, 1) for n in range(25)]
    assert [len(call) for call in split_calls(many, max_bytes=50)] == [10, 10, 5]
    assert list(split_calls([], max_bytes=50)) == []
