"""Addresses made of what a message says: no value leads out of what the operator meant."""

from __future__ import annotations

import pytest

from pillarbox.brokers.aws.encoding import compile_target, find_target_of_topic
from pillarbox.brokers.kafka.encoding import TOPIC_RULES as KAFKA
from pillarbox.brokers.mqtt.encoding import TOPIC_RULES as MQTT
from pillarbox.brokers.nats.encoding import SUBJECT_RULES as NATS
from pillarbox.brokers.nats.encoding import Encoder
from pillarbox.brokers.rabbitmq.encoding import NAME_RULES as RABBITMQ
from pillarbox.brokers.redis.encoding import Encoder as RedisEncoder
from pillarbox.brokers.send_batch import encode_each
from pillarbox.brokers.templates import ANY_ADDRESS, AddressRules, compile_template
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import MessageRejected
from pillarbox.testing.samples import sample

_RULES = {"nats": NATS, "mqtt": MQTT, "kafka": KAFKA, "rabbitmq": RABBITMQ, "redis": ANY_ADDRESS}


def fill(template: str, topic: str, rules: AddressRules) -> str:
    return compile_template(template, option="address", transport="any", rules=rules)(sample(topic=topic))


@pytest.mark.parametrize("rules", _RULES.values(), ids=_RULES)
@pytest.mark.parametrize("topic", ["", "a\x00b", "a\r\nb", "a\x9fb", "a\u2028b", "\ud800"])
@pytest.mark.parametrize("template", ["{topic}", "shop.{topic}"])
def test_a_value_is_never_empty_and_has_no_control_characters(rules: AddressRules, topic: str, template: str) -> None:
    with pytest.raises(MessageRejected, match="topic"):
        fill(template, topic, rules)


@pytest.mark.parametrize(
    ("broker", "topic"),
    [
        ("nats", "$JS.API.STREAM.PURGE.X"),
        ("nats", "$SYS.REQ.SERVER.PING"),
        ("nats", "$KV.settings.a"),
        ("nats", "_INBOX.abc.1"),
        ("nats", "_INBOX"),
        ("nats", "_R_.x"),
        ("nats", "a.*"),
        ("nats", "a.>"),
        ("nats", "a*b"),
        ("nats", "a b"),
        ("mqtt", "$SYS/broker/version"),
        ("mqtt", "$share/group/a"),
        ("mqtt", "a/+"),
        ("mqtt", "a/#"),
        ("kafka", "__consumer_offsets"),
        ("kafka", "__transaction_state"),
        ("kafka", "_schemas"),
        ("rabbitmq", "amq.rabbitmq.reply-to.abc"),
        ("rabbitmq", "amq.gen-abc"),
    ],
)
def test_what_belongs_to_the_broker_is_refused(broker: str, topic: str) -> None:
    with pytest.raises(MessageRejected, match="address"):
        fill("{topic}", topic, _RULES[broker])


@pytest.mark.parametrize(
    ("broker", "template", "topic"),
    [
        ("nats", "${topic}", "JS.API.STREAM.PURGE.X"),
        ("nats", "_{topic}", "INBOX.a"),
        ("mqtt", "{kind}{topic}", "/+"),
        ("kafka", "_{topic}", "_consumer_offsets"),
        ("rabbitmq", "am{topic}", "q.topic"),
    ],
)
def test_a_value_cannot_complete_a_reserved_name(broker: str, template: str, topic: str) -> None:
    with pytest.raises(MessageRejected):
        fill(template, topic, _RULES[broker])


@pytest.mark.parametrize(
    ("broker", "template", "topic", "address"),
    [
        ("nats", "orders.{topic}", "$x", "orders.$x"),
        ("nats", "$KV.settings.{topic}", "a", "$KV.settings.a"),
        ("nats", "$JS.fixed", "*", "$JS.fixed"),
        ("mqtt", "$aws/things/{topic}", "a/b", "$aws/things/a/b"),
        ("kafka", "__mine.{topic}", "a", "__mine.a"),
        ("kafka", "{topic}", "_orders", "_orders"),
        ("rabbitmq", "amq.{topic}", "topic", "amq.topic"),
        ("redis", "shop:{topic}", "a:b", "shop:a:b"),
    ],
)
def test_the_operator_may_write_what_a_message_may_not(broker: str, template: str, topic: str, address: str) -> None:
    assert fill(template, topic, _RULES[broker]) == address


def test_nothing_is_published_to_an_inbox_of_another_name() -> None:
    subject = compile_template("shop.{topic}", option="subject", transport="nats", rules=NATS)
    encoder = Encoder(subject=subject, inbox="shop.answers")
    assert encoder.encode(sample(topic="answersheet"), limit=10_000).subject == "shop.answersheet"
    for topic in ("answers", "answers.x.1"):
        with pytest.raises(MessageRejected, match="inbox"):
            encoder.encode(sample(topic=topic), limit=10_000)


@pytest.mark.parametrize(
    "topic", ["x/../../999/other", "/evil.example/q", "a:b", "a?b", "a#b", "a@b", "a%2fb", "..", ".", "a\\b", "a b"]
)
@pytest.mark.parametrize(
    "template", ["https://sqs.example/123/{topic}", "https://sqs.example/{topic}/q", "arn:aws:sns:eu:1:{topic}"]
)
def test_a_value_stays_inside_its_url_or_arn(template: str, topic: str) -> None:
    target = compile_target(template, option="queue_url", transport="sqs", max_length=80)
    with pytest.raises(MessageRejected, match="URL or an ARN"):
        target(sample(topic=topic))
    with pytest.raises(MessageRejected, match="URL or an ARN"):
        find_target_of_topic(template, topic, max_length=80)


def test_a_topic_that_looks_like_an_arn_is_a_name() -> None:
    name = compile_target("{topic}", option="topic", transport="sns", max_length=80)(sample(topic="arn:aws:sns:x:1:y"))
    assert name == "arn-aws-sns-x-1-y" == find_target_of_topic("{topic}", "arn:aws:sns:x:1:y", max_length=80)


def test_a_key_of_redis_has_a_limit() -> None:
    with pytest.raises(MessageRejected, match="longer than"):
        RedisEncoder(key=lambda message: message.topic).encode(sample(topic="x" * 5_000), limit=10)


def test_a_value_that_no_encoder_foresaw_costs_its_own_message_alone() -> None:
    def encode(text: str) -> bytes:
        return text.encode()

    good, bad = sample(), sample(subject="\ud800")
    first, second, third = encode_each([good, bad, good], lambda message: encode(message.subject or "fine"))
    assert (first, third) == (b"fine", b"fine")
    assert isinstance(second, Outcome)
    assert second.rejected
    assert "cannot be encoded" in (second.error or "")
