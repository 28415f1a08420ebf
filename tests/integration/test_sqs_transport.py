"""SQS against moto: what arrives, what each refusal means, and that no answer is believed too early."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from pillarbox.brokers.aws import SqsTransport
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Inspector, Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.aws_gateway import Gateway, No
from tests.support.aws_reader import REGION, AwsReader, policy
from tests.support.certificates import Authority
from tests.support.moto_server import private_moto

CANARY = "canary-0123456789"
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
def queue(reader: AwsReader) -> str:
    """One that only this test uses."""
    name = reader.name()
    reader.queue(name)
    return name


def sqs(endpoint: str, **options: object) -> SqsTransport:
    options.setdefault("user", "key")
    options.setdefault("password", "secret")
    transport = transport_from_url(f"sqs://{REGION}", options={"endpoint": endpoint, **options})
    assert isinstance(transport, SqsTransport)
    return transport


@asynccontextmanager
async def opened(endpoint: str, **options: object) -> AsyncIterator[SqsTransport]:
    transport = sqs(endpoint, **options)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def proxied(gateway: Gateway, **options: object) -> AsyncIterator[tuple[FaultProxy, SqsTransport]]:
    """With a proxy between the transport and the gateway."""
    async with (
        FaultProxy("127.0.0.1", gateway.port) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}", **options) as transport,
    ):
        yield proxy, transport


def some(count: int = 3) -> Sequence[Message]:
    return [sample(key=f"key-{number}") for number in range(count)]


def sends(gateway: Gateway) -> list[int]:
    """How many entries each call to send had."""
    return [len(call.entries) for call in gateway.calls if call.operation == "SendMessageBatch"]


# --- what arrives ------------------------------------------------------------------------------------


async def test_a_consumer_that_knows_nothing_of_us(reader: AwsReader, queue: str) -> None:
    message = sample(key="c-1", headers={"tenant": "shop-1"}, correlation_id="request-1")
    async with opened(reader.url, queue=queue) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = reader.read(queue)
    document = msgspec.json.decode(got.body)
    assert (document["id"], document["type"], document["data"]) == (
        str(message.message_id), "orders.placed", {"order_id": 1},
    )  # fmt: skip
    assert got.attributes["ce_id"] == str(message.message_id)
    assert got.attributes["ce_partitionkey"] == "c-1"
    assert got.attributes["content-type"] == "application/cloudevents+json"


async def test_binary_mode_is_the_payload(reader: AwsReader, queue: str) -> None:
    async with opened(reader.url, queue=queue, mode="binary") as transport:
        assert await transport.send([sample()]) == [DELIVERED]
    (got,) = reader.read(queue)
    assert (got.body, got.attributes["content-type"]) == ('{"order_id": 1}', "application/json")


async def test_a_fifo_queue_gets_groups_and_knows_repeats(reader: AwsReader) -> None:
    name = reader.name(".fifo")
    reader.queue(name)
    keyed, keyless, odd = sample(key="c-1"), sample(key=None), sample(key="Žižkov")
    async with opened(reader.url, queue=name) as transport:
        assert await transport.send([keyed, keyless, odd]) == [DELIVERED] * 3
        assert await transport.send([keyed]) == [DELIVERED]
    arrived = reader.read(name)
    assert [one.system["MessageGroupId"] for one in arrived[:2]] == ["c-1", str(keyless.message_id)]
    assert len(arrived[2].system["MessageGroupId"]) == 64
    assert [one.system["MessageDeduplicationId"] for one in arrived] == [
        str(m.message_id) for m in (keyed, keyless, odd)
    ]


async def test_topics_become_queues(reader: AwsReader, queue: str) -> None:
    other = reader.name()
    reader.queue(f"{other}-placed")
    async with opened(reader.url) as transport:
        messages = [
            sample(topic=queue, key="a"),
            sample(topic=f"{other}.placed", key="b"),
            sample(topic=queue, key="c"),
        ]
        assert await transport.send(messages) == [DELIVERED] * 3
    assert [len(reader.read(name)) for name in (queue, f"{other}-placed")] == [2, 1]


async def test_a_queues_url_needs_no_look_up(reader: AwsReader, gateway: Gateway, queue: str) -> None:
    url = reader.queue(queue).replace(queue, "{topic}")
    async with opened(gateway.url, queue_url=url) as transport:
        assert await transport.send([sample(topic=queue)]) == [DELIVERED]
    assert {call.operation for call in gateway.calls} == {"ListQueues", "SendMessageBatch"}


async def test_many_messages_are_few_calls_at_once(reader: AwsReader, gateway: Gateway, queue: str) -> None:
    messages = some(95)
    async with opened(gateway.url, queue=queue, concurrency=3) as transport:
        assert await transport.send(messages) == [DELIVERED] * 95
    assert sorted(sends(gateway)) == [5] + [10] * 9
    assert 1 < gateway.most_at_once <= 3
    assert {one.attributes["ce_id"] for one in reader.read(queue)} == {str(message.message_id) for message in messages}


async def test_large_messages_do_not_share_a_call(gateway: Gateway, queue: str) -> None:
    messages = [sample(key=f"key-{n}", payload=b'"%s"' % (b"x" * 400_000)) for n in range(3)]
    async with opened(gateway.url, queue=queue) as transport:
        assert await transport.send(messages) == [DELIVERED] * 3
    assert sorted(sends(gateway)) == [1, 2]


async def test_of_one_key_the_next_goes_only_when_the_one_before_is_delivered(
    reader: AwsReader, gateway: Gateway, queue: str
) -> None:
    messages = [sample(key=key, payload=b"%d" % n) for n, key in enumerate(["a", "b", "a", "b", "a"])]
    async with opened(gateway.url, queue=queue) as transport:
        gateway.refuses.append(No())
        answers = await transport.send(messages)
    assert [answer.delivered for answer in answers] == [False, True, False, True, False]
    assert "earlier message of its key" in (answers[2].error or "")
    assert sends(gateway) == [2, 1]
    assert [msgspec.json.decode(one.body)["data"] for one in reader.read(queue)] == [1, 3]


# --- declaring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fifo"])
async def test_a_queue_that_is_declared(reader: AwsReader, suffix: str) -> None:
    name = reader.name(suffix)
    async with opened(reader.url, queue=name, declare=True):
        settings = reader.settings(name)
    assert (settings["MessageRetentionPeriod"], settings["SqsManagedSseEnabled"]) == ("1209600", "true")
    assert settings.get("FifoQueue", "false") == str(bool(suffix)).lower()


async def test_a_queue_that_is_declared_when_its_first_message_comes(reader: AwsReader) -> None:
    name = reader.name()
    async with opened(reader.url, declare=True) as transport:
        assert await transport.send([sample(topic=name)]) == [DELIVERED]
    assert len(reader.read(name)) == 1


async def test_what_is_there_is_left_as_it_is(reader: AwsReader, queue: str) -> None:
    before = reader.settings(queue)
    async with opened(reader.url, queue=queue, declare=True) as transport:
        assert await transport.send([sample()]) == [DELIVERED]
    assert reader.settings(queue)["MessageRetentionPeriod"] == before["MessageRetentionPeriod"]


# --- refusals ----------------------------------------------------------------------------------------


async def test_a_missing_queue_is_waited_for(reader: AwsReader) -> None:
    name = reader.name()
    with pytest.raises(TransportUnavailable, match=f"has no queue '{name}'.*create it, or set declare=true"):
        async with opened(reader.url, queue=name):
            pass
    async with opened(reader.url) as transport:
        (missing,) = await transport.send([sample(topic=name)])
        assert (missing.not_now, missing.missing) == (True, True)
        assert f"has no queue '{name}'" in (missing.error or "")


async def test_a_missing_queue_stops_no_other(reader: AwsReader, queue: str) -> None:
    async with opened(reader.url) as transport:
        answers = await transport.send([sample(topic=reader.name(), key="a"), sample(topic=queue, key="b")])
    assert [(answer.delivered, answer.rejected, answer.lost) for answer in answers] == [
        (False, False, False), (True, False, False),
    ]  # fmt: skip


async def test_a_queue_that_went_away_is_looked_for_anew(reader: AwsReader) -> None:
    """What was known of it is forgotten; so it can be declared again."""
    name = reader.name()
    async with opened(reader.url, queue=name, declare=True) as transport:
        assert await transport.send([sample()]) == [DELIVERED]
        reader.sqs.delete_queue(QueueUrl=reader.sqs.get_queue_url(QueueName=name)["QueueUrl"])
        (gone,) = await transport.send([sample()])
        assert gone.missing
        assert await transport.send([sample()]) == [DELIVERED]


@pytest.mark.parametrize(
    ("no", "rejected"),
    [
        (No(code="InvalidMessageContents", sender_fault=True), True),
        (No(code="InternalError"), False),
        (No(code="ThrottlingException", sender_fault=True), False),
        (No(code="KmsThrottled", sender_fault=True), False),
        (No(code="AccessDenied", sender_fault=True), False),
        (No(silent=True), False),
    ],
)
async def test_one_entry_of_three_is_refused(gateway: Gateway, queue: str, no: No, rejected: bool) -> None:
    """AWS answers 200, and says in it which ones it did not take; or says nothing of one."""
    async with opened(gateway.url, queue=queue) as transport:
        gateway.refuses.append(no)
        answers = await transport.send(some())
    assert [answer.delivered for answer in answers] == [False, True, True]
    assert answers[0].rejected == rejected
    assert answers[0].error


@pytest.mark.parametrize("code", ["AccessDenied", "KmsDisabled"])
async def test_a_permission_on_the_queue_is_waited_for(gateway: Gateway, queue: str, code: str) -> None:
    async with opened(gateway.url, queue=queue) as transport:
        gateway.answers["SendMessageBatch"] = No(code=code, status=403)
        outcomes = await transport.send(some())
    assert {(outcome.not_now, outcome.missing) for outcome in outcomes} == {(True, True)}
    assert code in (outcomes[0].error or "")


@pytest.mark.parametrize("code", ["InvalidClientTokenId", "ExpiredToken"])
async def test_a_login_that_is_not_taken_is_an_outage(gateway: Gateway, queue: str, code: str) -> None:
    async with opened(gateway.url, queue=queue) as transport:
        gateway.answers["SendMessageBatch"] = No(code=code, status=403)
        with pytest.raises(TransportUnavailable, match=code) as away:
            await transport.send(some())
    assert not away.value.mid_send


@pytest.mark.parametrize(
    ("code", "status"), [("ThrottlingException", 400), ("InternalFailure", 500), ("SlowDown", 503)]
)
async def test_throttled_is_not_delivered_and_not_repeated_by_the_client(
    gateway: Gateway, queue: str, code: str, status: int
) -> None:
    async with opened(gateway.url, queue=queue) as transport:
        gateway.answers["SendMessageBatch"] = No(code=code, status=status)
        answers = await transport.send(some())
    assert [(answer.delivered, answer.rejected, answer.lost) for answer in answers] == [(False, False, False)] * 3
    assert len(sends(gateway)) == 1


async def test_a_call_that_is_refused_for_one_of_its_messages(gateway: Gateway, reader: AwsReader, queue: str) -> None:
    """Then each goes alone, and only the one that is to blame is rejected."""
    limited = reader.name()
    reader.queue(limited, MaximumMessageSize="2048")
    async with opened(gateway.url, queue=limited) as transport:
        messages = [sample(key="a"), sample(key="b", payload=b'"%s"' % (b"x" * 3_000)), sample(key="c")]
        answers = await transport.send(messages)
    assert [(answer.delivered, answer.rejected) for answer in answers] == [(True, False), (False, True), (True, False)]
    assert len(reader.read(limited)) == 2


async def test_a_message_over_the_limit_is_never_sent(gateway: Gateway, queue: str) -> None:
    async with opened(gateway.url, queue=queue) as transport:
        large, small = sample(key="a", payload=b'"%s"' % (b"x" * 1_048_576)), sample(key="b")
        answers = await transport.send([large, small])
    assert [(answer.delivered, answer.rejected) for answer in answers] == [(False, True), (True, False)]
    assert sends(gateway) == [1]


async def test_the_largest_payload_that_is_promised(reader: AwsReader, queue: str) -> None:
    async with opened(reader.url, queue=queue) as transport:
        most = transport.features.max_payload or 0
        message = sample(payload=b"\xff" * most, content_type="application/octet-stream", headers={"x": "y" * 8_000})
        assert await transport.send([message]) == [DELIVERED]


# --- connections -------------------------------------------------------------------------------------


async def test_nobody_is_there() -> None:
    with pytest.raises(TransportUnavailable, match=r"cannot be reached \(Connection refused\)") as away:
        async with opened("http://127.0.0.1:9"):
            pass
    assert not away.value.mid_send


async def test_no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: AwsReader) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(TransportUnavailable, match="There is no login for sqs://eu-central-1"):
        async with opened(reader.url, user=None, password=None):
            pass
    with pytest.raises(TransportUnavailable, match="There is no login"):
        async with opened(reader.url, user=None, password=None, profile="nobody"):
            pass
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with opened(reader.url, user=None, password=None) as transport:
        await transport.ping()


async def test_a_lost_answer_is_no_delivery(reader: AwsReader, gateway: Gateway, queue: str) -> None:
    message = sample()
    async with proxied(gateway, queue=queue) as (proxy, transport):
        proxy.drop_answers()
        proxy.answered.clear()
        sending = asyncio.create_task(transport.send([message]))
        async with asyncio.timeout(30):
            await proxy.answered.wait()
        proxy.cut()
        with pytest.raises(TransportUnavailable, match="broke before the answer") as cut:
            await sending
        assert cut.value.mid_send
        proxy.heal()
        assert await transport.send([message]) == [DELIVERED]
    assert {one.attributes["ce_id"] for one in reader.read(queue)} == {str(message.message_id)}


async def test_a_service_that_hangs(gateway: Gateway, queue: str) -> None:
    async with proxied(gateway, queue=queue, timeout="500ms") as (proxy, transport):
        proxy.hang()
        answers = await transport.send(some())
        assert [answer.error for answer in answers] == ["no answer within 0.5 s from sqs://eu-central-1"] * 3
        with pytest.raises(TransportUnavailable, match="no answer within"):
            await transport.ping()
        proxy.heal()
    async with opened(gateway.url, queue=queue) as transport:
        assert await transport.send(some()) == [DELIVERED] * 3


async def test_waiting_for_a_turn_does_not_count_as_time(gateway: Gateway, queue: str) -> None:
    """Eight calls, one at a time, take longer than one may."""
    async with opened(gateway.url, queue=queue, concurrency=1, timeout="1500ms") as transport:
        gateway.answers["SendMessageBatch"] = No(code="ThrottlingException", status=400)
        gateway.delay = 0.25
        answers = await transport.send(some(80))
    assert {"ThrottlingException" in (answer.error or "") for answer in answers} == {True}


async def test_what_is_answered_keeps_its_answer_when_another_call_breaks(gateway: Gateway, queue: str) -> None:
    async with opened(gateway.url, queue=queue, concurrency=1) as transport:
        gateway.hangs_up_after = 1
        answers = await transport.send(some(20))
    assert [(answer.delivered, answer.lost) for answer in answers] == [(True, False)] * 10 + [(False, True)] * 10


async def test_an_answer_that_is_none_of_theirs(gateway: Gateway, queue: str) -> None:
    async with opened(gateway.url, queue=queue) as transport:
        gateway.garbage = b"<html>Welcome to the hotel's network</html>"
        answers = await transport.send(some())
    assert [(answer.delivered, answer.rejected) for answer in answers] == [(False, False)] * 3


async def test_ping_says_what_is_wrong_with_the_login(gateway: Gateway) -> None:
    async with opened(gateway.url) as transport:
        gateway.answers["ListQueues"] = No(code="AccessDenied", status=403)
        await transport.ping()  # somebody is there, and that is all that was asked
        gateway.answers["ListQueues"] = No(code="SignatureDoesNotMatch", status=403)
        with pytest.raises(TransportUnavailable, match="does not take this login"):
            await transport.ping()


async def test_secrets_are_in_no_error(gateway: Gateway, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened(gateway.url, queue=queue, password=CANARY, session_token=CANARY) as transport:
        gateway.refuses.append(No(code="InvalidMessageContents", sender_fault=True, said=f"you said {CANARY}"))
        answers = await transport.send(some())
        gateway.answers["SendMessageBatch"] = No(code="AccessDenied", status=403, said=f"with {CANARY}")
        answers = [*answers, *await transport.send(some())]
    assert CANARY not in str(answers) + caplog.text


# --- TLS ---------------------------------------------------------------------------------------------


async def test_only_a_trusted_endpoint_is_spoken_to(reader: AwsReader, queue: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.signed("aws", alternative="IP:127.0.0.1"))
    async with Gateway(reader.url, tls=tls) as gateway:
        async with opened(gateway.url, queue=queue, ca=str(authority.file)) as transport:
            assert await transport.send([sample()]) == [DELIVERED]
        with pytest.raises(TransportUnavailable, match="cannot be trusted"):
            async with opened(gateway.url, queue=queue):
                pass
        async with opened(gateway.url, queue=queue, verify=False, insecure=True) as transport:
            assert await transport.send([sample()]) == [DELIVERED]


# --- inspecting --------------------------------------------------------------------------------------


async def inspected(endpoint: str, *topics: str, **options: object) -> dict[str, Finding]:
    transport = sqs(endpoint, **options)
    assert isinstance(transport, Inspector)
    found = await transport.inspect(topics=topics)
    assert all(finding.what and finding.why and finding.fix for finding in found)
    return {finding.code: finding for finding in found}


async def test_a_queue_that_loses_messages(reader: AwsReader) -> None:
    name, dead = reader.name(), reader.name()
    reader.queue(dead, MessageRetentionPeriod="3600")
    target = reader.queue_arn(dead)
    reader.queue(
        name, MessageRetentionPeriod="3600", MaximumMessageSize="1024", SqsManagedSseEnabled="false",
        RedrivePolicy=policy(target, tries=1),
    )  # fmt: skip
    found = await inspected(reader.url, name)
    assert {code: finding.severity for code, finding in found.items()} == {
        "sqs.short-retention": Severity.WARNING,
        "sqs.dead-letters-expire": Severity.WARNING,
        "sqs.few-receives": Severity.WARNING,
        "sqs.not-encrypted": Severity.WARNING,
        "sqs.size-limit": Severity.INFO,
        "sqs.standard-queue": Severity.INFO,
    }


async def test_a_queue_that_is_well(reader: AwsReader) -> None:
    name, dead = reader.name(".fifo"), reader.name(".fifo")
    reader.queue(dead, MessageRetentionPeriod="1209600")
    reader.queue(name, SqsManagedSseEnabled="true", RedrivePolicy=policy(reader.queue_arn(dead), tries=5))
    assert set(await inspected(reader.url, name)) == {"sqs.dedup-window"}


async def test_queues_that_cannot_be_looked_at(gateway: Gateway, queue: str) -> None:
    assert (await inspected(gateway.url, "no-such-queue"))["sqs.queue-missing"].severity is Severity.CRITICAL
    assert set(await inspected(gateway.url, "orders", queue="{key}")) == {"sqs.queues-unknown"}
    assert set(await inspected(gateway.url, "x" * 90)) == {"sqs.name-unusable"}
    gateway.answers["GetQueueAttributes"] = No(code="AccessDenied", status=403)
    assert set(await inspected(gateway.url, queue)) == {"sqs.settings-unseen"}


async def test_nobody_to_inspect() -> None:
    with pytest.raises(TransportUnavailable):
        await inspected("http://127.0.0.1:9", "orders")
