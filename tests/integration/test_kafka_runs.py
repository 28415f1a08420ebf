"""Runs of a key to Kafka: what the cluster has of a run is its beginning, however the send ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError

from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import KafkaCluster, arrivals
from tests.support.kafka_sequences import Batch, SequenceGate, sequence_gate

_QUICK: Final = timedelta(seconds=2)
_ONE_EACH: Final = {"batch.num.messages": Secret("1")}
"""A request for each message: the next ones are on their way when one is refused."""


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        cluster.create("orders", "other", partitions=3)
        yield cluster


@pytest.fixture
async def gate(cluster: KafkaCluster) -> AsyncIterator[SequenceGate]:
    async with sequence_gate(cluster) as gate:
        yield gate


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(KafkaSettings(url=url, **options))
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def run(count: int, **values: Any) -> list[Message]:
    return [sample(**{"key": "a", "topic": "orders", **values}) for _ in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.message_id) for message in messages]


async def taken(cluster: KafkaCluster, *, topic: str = "orders", key: str = "a") -> list[str]:
    """The ids of the messages of one key that the cluster has, in order."""
    cluster.advertise(cluster.host, cluster.port)
    return [record.headers["ce_id"] for record in await arrivals(cluster, topic) if record.key == key]


def refuse(code: int, *, number: int) -> Callable[[Batch], int]:
    """Refuse one batch of the first partition that gets any: that with this number, counted from 0."""
    seen = 0

    def answer(_: Batch) -> int:
        nonlocal seen
        seen += 1
        return code if seen == number + 1 else 0

    return answer


async def test_a_run_is_written_in_order_beside_other_messages(cluster: KafkaCluster, gate: SequenceGate) -> None:
    first, second, others = run(50), run(20, key="b", topic="other"), [*run(2, key=None), *run(1, key="c")]
    mixed = [m for pair in zip(first, [*second, *others, *[None] * 27], strict=True) for m in pair if m is not None]
    async with opened(gate.url) as transport:
        assert transport.features.runs
        assert await transport.send(mixed) == [DELIVERED] * 73
    assert await taken(cluster) == ids(first)
    assert await taken(cluster, topic="other", key="b") == ids(second)
    assert len(await arrivals(cluster, "orders", "other")) == 73


@pytest.mark.parametrize("number", [0, 1, 2, 4])
@pytest.mark.parametrize("code", [KafkaError.THROTTLING_QUOTA_EXCEEDED, KafkaError.TOPIC_AUTHORIZATION_FAILED])
async def test_a_refused_request_ends_the_run(
    cluster: KafkaCluster, gate: SequenceGate, number: int, code: int
) -> None:
    messages = run(8)
    gate.answer_batch = refuse(code, number=number)
    async with opened(gate.url, client=_ONE_EACH) as transport:
        outcomes = await transport.send(messages)
        assert outcomes[:number] == [DELIVERED] * number
        assert outcomes[number].not_now
        assert outcomes[number + 1 :] == [UNSENT] * (7 - number)
        assert await taken(cluster) == ids(messages[:number])
        cluster.advertise("127.0.0.1", gate.port)
        assert await transport.send(messages[number:]) == [DELIVERED] * (8 - number)
    assert await taken(cluster) == ids(messages)


async def test_of_a_run_in_a_request_that_is_too_large_only_the_guilty_is_rejected(
    cluster: KafkaCluster, gate: SequenceGate
) -> None:
    messages = run(6)
    async with opened(gate.url, client={"linger.ms": Secret("50")}) as transport:
        refused = 0

        def answer(batch: Batch) -> int:
            """The requests with several messages, and the third of those with one, after the first of the run."""
            nonlocal refused
            if batch.count > 1:
                return KafkaError.MSG_SIZE_TOO_LARGE
            refused += 1
            return KafkaError.MSG_SIZE_TOO_LARGE if refused == 4 else 0

        gate.answer_batch = answer
        outcomes = await transport.send(messages)
    assert [outcome.delivered for outcome in outcomes] == [True, True, True, False, False, False]
    assert outcomes[3].rejected
    assert outcomes[4:] == [UNSENT] * 2
    assert await taken(cluster) == ids(messages[:3])


async def test_a_message_that_the_client_refuses_ends_the_run(cluster: KafkaCluster) -> None:
    for place in (0, 1, 3):
        messages = run(5, key=f"key-{place}")
        messages[place] = sample(key=f"key-{place}", topic="orders", payload=b"x" * 2_001)
        other = run(3, key="other")
        async with opened(cluster.url, max_message_bytes=2_000) as transport:
            outcomes = await transport.send([*messages, *other])
        assert outcomes[:place] == [DELIVERED] * place
        assert outcomes[place].rejected
        assert outcomes[place + 1 : 5] == [UNSENT] * (4 - place)
        assert outcomes[5:] == [DELIVERED] * 3
        assert await taken(cluster, key=f"key-{place}") == ids(messages[:place])


async def test_what_cannot_be_encoded_ends_the_run(cluster: KafkaCluster) -> None:
    messages = [*run(2), *run(1, topic="no topic"), *run(2)]
    async with opened(cluster.url) as transport:
        outcomes = await transport.send(messages)
    assert outcomes[:2] == [DELIVERED] * 2
    assert outcomes[2].rejected
    assert outcomes[3:] == [UNSENT] * 2
    assert await taken(cluster) == ids(messages[:2])


async def test_a_full_client_does_not_reorder_a_run(cluster: KafkaCluster) -> None:
    messages = run(200)
    async with opened(cluster.url, client={"queue.buffering.max.messages": Secret("10")}) as transport:
        assert await transport.send(messages) == [DELIVERED] * 200
    assert await taken(cluster) == ids(messages)


async def test_a_run_that_changes_its_topic_goes_on_after_the_acknowledgement(cluster: KafkaCluster) -> None:
    messages = [*run(2), *run(2, topic="other"), *run(2)]
    async with opened(cluster.url, timeout=_QUICK) as transport:
        assert await transport.send(messages) == [DELIVERED] * 6
        messages = [*run(2, key="b"), *run(2, key="b", topic="nowhere"), *run(2, key="b")]
        outcomes = await transport.send(messages)
    assert outcomes[:2] == [DELIVERED] * 2
    assert outcomes[2].missing
    assert outcomes[3:] == [UNSENT] * 3
    assert await taken(cluster, key="b") == ids(messages[:2])


async def test_errors_that_pass_are_waited_out(cluster: KafkaCluster, gate: SequenceGate) -> None:
    messages = run(10)
    codes = iter([0, 0, KafkaError.NOT_ENOUGH_REPLICAS, 0, KafkaError.REQUEST_TIMED_OUT])
    gate.answer_batch = lambda _: next(codes, 0)
    async with opened(gate.url, client=_ONE_EACH) as transport:
        assert await transport.send(messages) == [DELIVERED] * 10
    assert await taken(cluster) == ids(messages)


async def test_what_was_not_answered_in_time_is_not_sent_later(cluster: KafkaCluster, gate: SequenceGate) -> None:
    """The time of messages of a run does not end one by one: then the later ones would be sent without the first."""
    messages = run(20)
    codes = iter([0, *[KafkaError.NOT_ENOUGH_REPLICAS] * 10_000])
    gate.answer_batch = lambda _: next(codes)
    async with opened(gate.url, timeout=_QUICK, client=_ONE_EACH) as transport:
        first, late, *rest = await transport.send(messages)
        assert first == DELIVERED
        assert (late.unanswered, late.not_now) == (True, True)
        assert rest == [UNSENT] * 18
        gate.answer_batch = lambda _: 0
        assert await transport.send(run(5, key="b")) == [DELIVERED] * 5
        assert await taken(cluster) == ids(messages[:1])


@pytest.mark.parametrize("size", [1, 20_000, 60_000, 400_000])
async def test_a_connection_that_is_cut_repeats_the_run_in_order(cluster: KafkaCluster, size: int) -> None:
    messages = run(60, payload=b"x" * 20_000)
    async with FaultProxy(cluster.host, cluster.port) as proxy:
        cluster.advertise(proxy.host, proxy.port)
        async with opened(f"kafka://{proxy.host}:{proxy.port}", compression="none") as transport:
            await transport.send(run(2, key="first"))
            proxy.cut_after(size)
            assert await transport.send(messages) == [DELIVERED] * 60
            assert list(dict.fromkeys(await taken(cluster))) == ids(messages)


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
async def test_an_outage_amid_a_run_leaves_a_beginning(cluster: KafkaCluster, chunks: int) -> None:
    messages = run(60, payload=b"x" * 20_000)
    async with FaultProxy(cluster.host, cluster.port) as proxy:
        cluster.advertise(proxy.host, proxy.port)
        async with opened(f"kafka://{proxy.host}:{proxy.port}", timeout=_QUICK, compression="none") as transport:
            await transport.send(run(2, key="first"))
            sending = asyncio.create_task(_send(transport, messages))
            for _ in range(chunks):
                proxy.requested.clear()
                await proxy.requested.wait()
            await proxy.down()
            outcomes = await sending
            found = list(dict.fromkeys(await taken(cluster)))
            delivered = sum(outcome.delivered for outcome in outcomes)
            assert [outcome.delivered for outcome in outcomes] == [True] * delivered + [False] * (60 - delivered)
            assert found == ids(messages[: len(found)])
            assert len(found) >= delivered


async def _send(transport: KafkaTransport, messages: Sequence[Message]) -> list[Outcome]:
    with suppress(TransportUnavailable):
        return list(await transport.send(messages))
    return [UNSENT] * len(messages)


async def test_an_outage_is_noticed_before_a_run_is_sent(cluster: KafkaCluster) -> None:
    async with opened(cluster.url, timeout=_QUICK) as transport:
        assert await transport.send([*run(2), *run(1, key="b")]) == [DELIVERED] * 3
        cluster.stop()
        with pytest.raises(TransportUnavailable):
            await transport.send([*run(2), *run(1, key="b")])
        with pytest.raises(TransportUnavailable) as known:
            await transport.send([*run(2), *run(1, key="b")])
        assert not known.value.mid_send
        cluster.start()
        async with asyncio.timeout(30):
            while True:
                with suppress(TransportUnavailable):
                    if await transport.send([*run(2), *run(1, key="b")]) == [DELIVERED] * 3:
                        break
                await asyncio.sleep(0.05)
