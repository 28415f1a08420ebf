"""The one place that asks the cluster about itself, and creates topics in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pillarbox.errors import MissingExtra, TransportUnavailable
from pillarbox.transports.kafka.client_settings import ClientConfig
from pillarbox.transports.kafka.facts import TopicFacts
from pillarbox.transports.kafka.verdicts import Code

try:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, TopicMetadata  # type: ignore[attr-defined]
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka transport") from error

__all__ = ["Admin"]

_SAFE_REPLICAS: Final = 3


class Admin:
    """An administrator's client, made when it is needed."""

    def __init__(self, config: ClientConfig, *, where: str, seconds: float, told: Callable[[str], str]) -> None:
        self._config = config
        self._where = where
        self._seconds = seconds
        self._told = told
        self._client: AdminClient | None = None

    def close(self) -> None:
        self._client = None

    async def create(self, topics: Sequence[str], *, partitions: int, replication: int) -> None:
        """Create those of the topics that are missing, so that one broker's end loses nothing."""
        config = {"unclean.leader.election.enable": "false"}
        if replication >= _SAFE_REPLICAS:
            config["min.insync.replicas"] = str(replication - 1)
        wanted = [NewTopic(topic, partitions, replication, config=config) for topic in topics]
        made = self._opened().create_topics(wanted, request_timeout=self._seconds)
        for topic, future in made.items():
            try:
                await asyncio.wrap_future(future)
            except KafkaException as error:
                if error.args[0].code() != Code.TOPIC_ALREADY_EXISTS:
                    raise TransportUnavailable(
                        f"{self._where} did not create the topic {topic} ({self._told(error.args[0].str())}): create "
                        "it yourself, or change the options partitions and replication."
                    ) from error

    async def look(self, topic: str) -> TopicFacts:
        """What the cluster tells about a topic; `TransportUnavailable` when it tells nothing."""
        try:
            found = await asyncio.to_thread(self._opened().list_topics, topic, self._seconds)
        except KafkaException as error:
            raise TransportUnavailable(
                f"{self._where} cannot be reached ({self._told(error.args[0].str())}): check that it runs."
            ) from error
        about = found.topics[topic]
        if about.error is not None:
            return TopicFacts(name=topic, error=about.error.code())
        settings, hidden = await self._settings("topic", topic)
        broker = str(min(found.brokers, default=0))
        cluster, _ = await self._settings("broker", broker)
        return TopicFacts(
            name=topic, replicas=_fewest(about), settings=settings, hidden=hidden, auto_create=cluster.get(_AUTO_CREATE)
        )

    async def _settings(self, kind: str, name: str) -> tuple[Mapping[str, str], str | None]:
        """The settings of a topic or a broker, or why they are not shown."""
        asked = self._opened().describe_configs([ConfigResource(kind, name)], request_timeout=self._seconds)
        try:
            (entries,) = [await asyncio.wrap_future(future) for future in asked.values()]
        except KafkaException as error:
            return {}, self._told(error.args[0].str())
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}, None

    def _opened(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(dict(self._config))
        return self._client


_AUTO_CREATE: Final = "auto.create.topics.enable"


def _fewest(topic: TopicMetadata) -> int:
    """Of the partition that has the fewest replicas."""
    return min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
