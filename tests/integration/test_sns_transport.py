"""SNS against moto: what arrives behind a topic, what each refusal means, and what a topic's settings can lose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing

import msgspec
import pytest

from pillarbox.brokers.aws import SnsTransport, decode
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Inspector, Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from tests.support.aws_gateway import Gateway, No
from tests.support.aws_reader import REGION, AwsReader, policy
from tests.support.moto_server import private_moto

DELIVERED = Outcome(delivered=True)


@pytest.fixture(scope="module")
def reader() -> Iterator[AwsReader]:
    with closing(private_moto()) as moto, closing(AwsReader(moto.url)) as reader:
        yield reader


@pytest.fixture
async def gateway(reader: AwsReader) -> AsyncIterator[Gateway]:
    async with Gateway(reader.url) as gateway:
        yield gateway


@pytest.fixture
def topic(reader: AwsReader) -> str:
    """One that only this test uses, with a queue of the same name behind it."""
    name = reader.name()
    reader.queue(name)
    reader.topic(name, queue=name)
    return name


def sns(endpoint: str, **options: object) -> SnsTransport:
    transport = transport_from_url(f"sns://key:secret@{REGION}", options={"endpoint": endpoint, **options})
    assert isinstance(transport, SnsTransport)
    return transport


@asynccontextmanager
async def opened(endpoint: str, **options: object) -> AsyncIterator[SnsTransport]:
    transport = sns(endpoint, **options)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def some(topic: str = "orders", count: int = 3) -> Sequence[Message]:
    return [sample(topic=topic, key=f"key-{number}") for number in range(count)]


# --- what arrives ------------------------------------------------------------------------------------


async def test_a_consumer_that_knows_nothing_of_us(reader: AwsReader, topic: str) -> None:
    message = sample(topic=topic, key="c-1")
    async with opened(reader.url) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = reader.read(topic)
    document = msgspec.json.decode(got.body)
    assert (document["id"], document["data"]) == (str(message.message_id), {"order_id": 1})
    assert (got.attributes["ce_id"], got.attributes["ce_type"]) == (str(message.message_id), "orders.placed")


async def test_binary_mode_with_bytes(reader: AwsReader, topic: str) -> None:
    message = sample(topic=topic, payload=b"\x00\xff", content_type="application/octet-stream")
    async with opened(reader.url, mode="binary") as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = reader.read(topic)
    assert (got.body, got.attributes["content-encoding"]) == ("AP8=", "base64")
    assert decode(got.body, got.attributes).payload == b"\x00\xff"


async def test_a_fifo_topic_gets_groups(reader: AwsReader) -> None:
    name = reader.name(".fifo")
    reader.queue(name)
    reader.topic(name, queue=name)
    message = sample(key="c-1")
    async with opened(reader.url, topic=name) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = reader.read(name)
    assert got.system["MessageGroupId"] == "c-1"
    assert got.system["MessageDeduplicationId"] == str(message.message_id)


async def test_a_topics_arn_needs_no_look_up(reader: AwsReader, gateway: Gateway, topic: str) -> None:
    arn = reader.topic(topic).replace(topic, "{topic}")
    async with opened(gateway.url, topic_arn=arn) as transport:
        gateway.calls.clear()
        assert await transport.send(some(topic)) == [DELIVERED] * 3
    assert [call.operation for call in gateway.calls] == ["PublishBatch"]


async def test_a_name_on_a_later_page_is_found(reader: AwsReader) -> None:
    names = [reader.name() for _ in range(103)]
    for name in names:
        reader.topic(name)
    async with opened(reader.url) as transport:
        answers = await transport.send([sample(topic=name, key=name) for name in (names[0], names[-1])])
    assert answers == [DELIVERED] * 2


@pytest.mark.parametrize("suffix", ["", ".fifo"])
async def test_a_topic_that_is_declared(reader: AwsReader, suffix: str) -> None:
    name = reader.name(suffix)
    async with opened(reader.url, topic=name, declare=True) as transport:
        assert await transport.send(some()) == [DELIVERED] * 3
    found = [one["TopicArn"] for page in reader.sns.get_paginator("list_topics").paginate() for one in page["Topics"]]
    assert any(arn.endswith(f":{name}") for arn in found)


# --- refusals ----------------------------------------------------------------------------------------


async def test_a_missing_topic_is_waited_for(reader: AwsReader) -> None:
    name = reader.name()
    with pytest.raises(TransportUnavailable, match=f"has no topic '{name}'"):
        async with opened(reader.url, topic=name):
            pass
    async with opened(reader.url) as transport:
        outcomes = await transport.send(some(name))
    assert all(outcome.missing and f"has no topic '{name}'" in (outcome.error or "") for outcome in outcomes)


async def test_a_missing_topic_stops_no_other(reader: AwsReader, topic: str) -> None:
    async with opened(reader.url) as transport:
        answers = await transport.send([sample(topic=reader.name(), key="a"), sample(topic=topic, key="b")])
    assert [answer.delivered for answer in answers] == [False, True]


@pytest.mark.parametrize(
    ("no", "rejected"),
    [
        (No(code="InvalidParameter", sender_fault=True), True),
        (No(code="InternalError"), False),
        (No(code="Throttled", sender_fault=True), False),
        (No(silent=True), False),
    ],
)
async def test_one_entry_of_three_is_refused(gateway: Gateway, topic: str, no: No, rejected: bool) -> None:
    async with opened(gateway.url, topic=topic) as transport:
        gateway.refuses.append(no)
        answers = await transport.send(some())
    assert [answer.delivered for answer in answers] == [False, True, True]
    assert answers[0].rejected == rejected


async def test_a_permission_on_the_topic_is_waited_for(gateway: Gateway, topic: str) -> None:
    async with opened(gateway.url, topic=topic) as transport:
        gateway.answers["PublishBatch"] = No(code="AuthorizationError", status=403)
        outcomes = await transport.send(some())
    assert all(outcome.missing and "allow sns:Publish" in (outcome.error or "") for outcome in outcomes)


async def test_throttled_is_not_delivered_and_not_repeated_by_the_client(gateway: Gateway, topic: str) -> None:
    async with opened(gateway.url, topic=topic) as transport:
        gateway.answers["PublishBatch"] = No(code="Throttled", status=429)
        answers = await transport.send(some())
    assert [(answer.delivered, answer.rejected, answer.lost) for answer in answers] == [(False, False, False)] * 3
    assert [call.operation for call in gateway.calls].count("PublishBatch") == 1


async def test_a_message_over_the_limit_is_never_sent(gateway: Gateway, topic: str) -> None:
    async with opened(gateway.url, topic=topic) as transport:
        most = transport.features.max_payload or 0
        fits = sample(
            key="a", payload=b"\xff" * most, content_type="application/octet-stream", headers={"x": "y" * 8_000}
        )
        large = sample(key="b", payload=b"\xff" * 200_000, content_type="application/octet-stream")
        answers = await transport.send([fits, large])
    assert [(answer.delivered, answer.rejected) for answer in answers] == [(True, False), (False, True)]


# --- inspecting --------------------------------------------------------------------------------------


async def inspected(endpoint: str, *topics: str, **options: object) -> dict[str, Finding]:
    transport = sns(endpoint, **options)
    assert isinstance(transport, Inspector)
    found = await transport.inspect(topics=topics)
    assert all(finding.what and finding.why and finding.fix for finding in found)
    return {finding.code: finding for finding in found}


async def test_a_topic_without_subscriptions_loses_everything(reader: AwsReader) -> None:
    name = reader.name()
    reader.topic(name)
    found = await inspected(reader.url, name)
    assert found["sns.no-subscriptions"].severity is Severity.CRITICAL


async def test_a_subscription_without_dead_letters(reader: AwsReader, topic: str) -> None:
    found = await inspected(reader.url, topic)
    assert {code: finding.severity for code, finding in found.items()} == {
        "sns.no-dead-letter-queue": Severity.WARNING,
        "sns.not-encrypted": Severity.INFO,
    }


async def test_a_topic_that_is_well(reader: AwsReader) -> None:
    name = reader.name(".fifo")
    reader.queue(name)
    arn = reader.topic(name, queue=name)
    reader.sns.set_topic_attributes(TopicArn=arn, AttributeName="KmsMasterKeyId", AttributeValue="alias/aws/sns")
    (one,) = reader.sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    reader.sns.set_subscription_attributes(
        SubscriptionArn=one["SubscriptionArn"],
        AttributeName="RedrivePolicy",
        AttributeValue=policy(reader.queue_arn(name), tries=3),
    )
    assert set(await inspected(reader.url, name)) == {"sns.dedup-window"}


async def test_topics_that_cannot_be_looked_at(gateway: Gateway, reader: AwsReader, topic: str) -> None:
    assert (await inspected(gateway.url, reader.name()))["sns.topic-missing"].severity is Severity.CRITICAL
    assert set(await inspected(gateway.url, "orders", topic="{key}")) == {"sns.topics-unknown"}
    gateway.answers["GetTopicAttributes"] = No(code="AuthorizationError", status=403)
    assert set(await inspected(gateway.url, topic)) == {"sns.settings-unseen"}
