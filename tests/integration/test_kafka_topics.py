"""Topics that the Kafka transport creates, and what it finds out about those that are there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import pytest
from confluent_kafka import KafkaError

from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.transport import Inspector, Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import KafkaCluster, arrivals
from tests.support.kafka_controller import Created, controlled

_DELIVERED: Final = Outcome(delivered=True)
_CARELESS: Final = {
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "true",
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "retention.bytes": "1000000",
    "max.message.bytes": "100000",
}
_CAREFUL: Final = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
}


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(settings)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def test_a_missing_topic_is_created_so_that_it_loses_nothing(cluster: KafkaCluster) -> None:
    async with controlled(cluster) as controller:
        async with opened(KafkaSettings(url=controller.url, declare=True, partitions=4)) as transport:
            assert await transport.send([sample(), sample(topic="refunds")]) == [_DELIVERED] * 2
            assert await transport.send([sample()]) == [_DELIVERED]
        safe = {"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}
        assert controller.created == [Created("orders", 4, 3, safe), Created("refunds", 4, 3, safe)]
    cluster.advertise(cluster.host, cluster.port)
    assert len(await arrivals(cluster, "orders", "refunds")) == 3


async def test_a_topic_that_is_there_is_left_alone(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with (
        controlled(cluster, error=KafkaError.TOPIC_ALREADY_EXISTS) as controller,
        opened(KafkaSettings(url=controller.url, declare=True)) as transport,
    ):
        assert await transport.send([sample()]) == [_DELIVERED]


async def test_a_topic_that_cannot_be_created_is_an_outage(cluster: KafkaCluster) -> None:
    async with (
        controlled(cluster, error=KafkaError.INVALID_REPLICATION_FACTOR) as controller,
        opened(KafkaSettings(url=controller.url, declare=True)) as transport,
    ):
        with pytest.raises(TransportUnavailable, match=r"did not create the topic orders .*option.* replication"):
            await transport.send([sample()])


async def test_without_declare_nothing_is_created(cluster: KafkaCluster) -> None:
    async with controlled(cluster) as controller:
        async with opened(KafkaSettings(url=controller.url, timeout=timedelta(seconds=2))) as transport:
            (missing,) = await transport.send([sample()])
            assert missing.missing
        assert controller.created == []


async def test_careless_settings_are_found(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with (
        controlled(cluster, settings=_CARELESS) as controller,
        opened(KafkaSettings(url=controller.url)) as transport,
    ):
        found = await transport.inspect(topics=["orders"])
    assert {finding.code for finding in found} == {
        "kafka.few-replicas",
        "kafka.min-insync-replicas",
        "kafka.unclean-leader-election",
        "kafka.short-retention",
        "kafka.retention-bytes",
        "kafka.small-messages",
        "kafka.auto-create",
    }
    assert all(finding.what and finding.why and finding.fix for finding in found)


async def test_careful_settings_are_not(cluster: KafkaCluster) -> None:
    """One replica and the cluster's creating of topics are all that is left to say."""
    cluster.create("orders")
    async with (
        controlled(cluster, settings=_CAREFUL) as controller,
        opened(KafkaSettings(url=controller.url)) as transport,
    ):
        found = await transport.inspect(topics=["orders"])
    assert {finding.code for finding in found} == {"kafka.few-replicas", "kafka.auto-create"}


async def test_what_the_login_may_not_see_is_said(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        assert isinstance(transport, Inspector)
        found = {finding.code: finding.severity for finding in await transport.inspect(topics=["orders"])}
    assert found["kafka.settings-hidden"] is Severity.INFO


async def test_a_missing_topic_is_found(cluster: KafkaCluster) -> None:
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        await transport.inspect(topics=["orders"])  # which must not create it
        (finding,) = await transport.inspect(topics=["orders"])
    assert (finding.code, finding.severity) == ("kafka.topic-missing", Severity.CRITICAL)
    assert "orders" in finding.what


async def test_topics_that_only_messages_know_are_not_looked_for(cluster: KafkaCluster) -> None:
    async with opened(KafkaSettings(url=cluster.url, topic="shop-{type}")) as transport:
        (finding,) = await transport.inspect(topics=["orders"])
    assert (finding.code, finding.severity) == ("kafka.topics-unknown", Severity.INFO)


async def test_a_cluster_that_is_away_cannot_be_inspected(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url, timeout=timedelta(seconds=1))) as transport:
        cluster.stop()
        with pytest.raises(TransportUnavailable):
            await transport.inspect(topics=["orders"])
