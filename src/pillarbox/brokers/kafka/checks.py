"""Checks of topic settings that can lose, delay or refuse messages, and the administrator's client that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.brokers.checks import report_critical, report_info, report_warning
from pillarbox.brokers.errors import unreachable_error
from pillarbox.brokers.kafka.errors import DeliveryStatus, ErrorCode, build_report
from pillarbox.brokers.kafka.settings import ClientConfig
from pillarbox.contracts.finding import Finding
from pillarbox.errors import MissingExtra, TransportUnavailable

try:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka transport") from error

__all__ = ["ClusterAdmin", "TopicDescription", "check_topic", "report_unknown_topics"]

_SHORT_RETENTION: Final = timedelta(days=1)
_SAFE_REPLICAS: Final = 3
_AUTO_CREATE: Final = "auto.create.topics.enable"


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic, as far as the cluster describes it."""

    name: str
    error: int = 0
    """Error code of the cluster, if it did not describe the topic."""
    replicas: int = 0
    """Replicas of the partition that has the fewest."""
    settings: Mapping[str, str] = {}
    hidden: str | None = None
    """The reason why the login cannot read the settings."""
    auto_create: str | None = None
    """The cluster's `auto.create.topics.enable`; None if the login cannot read it."""


def check_topic(topic: TopicDescription, *, max_message_bytes: int) -> Sequence[Finding]:
    """Return findings for everything that could lose, delay or refuse messages of the topic."""
    if topic.error:
        return [_report_unusable_topic(topic)]
    findings = [*_check_replication(topic), *_check_retention(topic), *_check_sizes(topic, max_message_bytes)]
    if topic.hidden is not None:
        findings.append(_report_hidden_settings(topic))
    if topic.auto_create == "true":
        findings.append(_report_auto_create())
    return findings


def _report_unusable_topic(topic: TopicDescription) -> Finding:
    report = build_report(topic.error, topic=topic.name, text=f"error {topic.error}")
    what, _, fix = report.reason.partition(": ")
    return report_critical(
        "kafka.topic-missing" if report.status is DeliveryStatus.MISSING else "kafka.topic-broken",
        what=f"{what[:1].upper()}{what[1:]}.",
        why="Its messages wait in the outbox; nothing is lost.",
        fix=f"{fix[:1].upper()}{fix[1:]}." if fix else "Look at the brokers' logs.",
    )


def _check_replication(topic: TopicDescription) -> Iterator[Finding]:
    min_insync = topic.settings.get("min.insync.replicas")
    if topic.replicas < _SAFE_REPLICAS:
        yield report_warning(
            "kafka.few-replicas",
            what=f"The topic {topic.name} has partitions on {topic.replicas} broker{'s' * (topic.replicas != 1)} only.",
            why="A broker that is lost takes acknowledged messages with it, or stops delivery.",
            fix="Raise the replication factor to 3 with kafka-reassign-partitions.",
        )
    if min_insync is not None and int(min_insync) < 2:
        yield report_warning(
            "kafka.min-insync-replicas",
            what=f"The topic {topic.name} acknowledges with min.insync.replicas = {min_insync}.",
            why="While the other replicas lag, one broker alone acknowledges; if it is lost, so are the messages.",
            fix="Set min.insync.replicas = 2, with a replication factor of 3.",
        )
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield report_critical(
            "kafka.unclean-leader-election",
            what=f"The topic {topic.name} has unclean.leader.election.enable = true.",
            why="A replica that lags behind can become the leader, and acknowledged messages are gone.",
            fix="Set unclean.leader.election.enable = false.",
        )


def _check_retention(topic: TopicDescription) -> Iterator[Finding]:
    policy = topic.settings.get("cleanup.policy", "")
    retention_ms = topic.settings.get("retention.ms")
    retention_bytes = topic.settings.get("retention.bytes")
    if "compact" in policy:
        yield report_warning(
            "kafka.compacted",
            what=f"The topic {topic.name} is compacted (cleanup.policy = {policy}).",
            why="Of each key only the last message is kept, and messages without a key are refused.",
            fix="Set cleanup.policy = delete, unless every message of a key replaces the one before.",
        )
    # A negative retention means without limit.
    if (
        "delete" in policy
        and retention_ms is not None
        and 0 <= int(retention_ms) < _SHORT_RETENTION / timedelta(milliseconds=1)
    ):
        yield report_warning(
            "kafka.short-retention",
            what=f"The topic {topic.name} keeps messages for {int(retention_ms) / 3_600_000:.3g} h.",
            why="A consumer that is down for longer never sees them.",
            fix="Raise retention.ms above the longest outage a consumer may have.",
        )
    if "delete" in policy and retention_bytes is not None and int(retention_bytes) >= 0:
        yield report_info(
            "kafka.retention-bytes",
            what=f"The topic {topic.name} keeps at most {retention_bytes} bytes per partition.",
            why="In a busy hour messages go before consumers have read them.",
            fix="Watch the consumers' lag, or set retention.bytes = -1.",
        )


def _check_sizes(topic: TopicDescription, max_message_bytes: int) -> Iterator[Finding]:
    limit = topic.settings.get("max.message.bytes")
    if limit is not None and int(limit) < max_message_bytes:
        yield report_warning(
            "kafka.small-messages",
            what=f"The topic {topic.name} takes requests of {limit} bytes; this transport sends {max_message_bytes}.",
            why="Requests of several messages are refused, and the messages sent again one by one, which is slow.",
            fix=f"Raise max.message.bytes, or set max_message_bytes={limit} on the transport.",
        )


def _report_hidden_settings(topic: TopicDescription) -> Finding:
    return report_info(
        "kafka.settings-hidden",
        what=f"The settings of the topic {topic.name} are not shown to this login ({topic.hidden}).",
        why="Whether min.insync.replicas, retention and leader election are safe is not known.",
        fix="Let the login describe configs, or look with kafka-configs --describe.",
    )


def _report_auto_create() -> Finding:
    return report_warning(
        "kafka.auto-create",
        what="The cluster creates topics when somebody names them (auto.create.topics.enable = true).",
        why="A misspelt name elsewhere makes a topic with the defaults, often one replica. This transport never does.",
        fix="Set auto.create.topics.enable = false on the brokers.",
    )


def report_unknown_topics(template: str) -> Finding:
    """Return the finding for a template that needs more than the topic."""
    return report_info(
        "kafka.topics-unknown",
        what=f"The Kafka topics are made from each message ({template}), so their settings were not looked at.",
        why="Whether they are replicated and kept long enough is not known.",
        fix="Look with kafka-topics --describe and kafka-configs --describe.",
    )


class ClusterAdmin:
    """Client for administration, made when it is needed."""

    def __init__(self, config: ClientConfig, *, where: str, seconds: float, sanitize: Callable[[str], str]) -> None:
        self._config = config
        self._where = where
        self._seconds = seconds
        self._sanitize = sanitize
        self._client: AdminClient | None = None

    def close(self) -> None:
        self._client = None

    async def create_topics(self, topics: Sequence[str], *, partitions: int, replication: int) -> None:
        """Create missing topics, with settings under which the loss of one broker loses no message."""
        config = {"unclean.leader.election.enable": "false"}
        if replication >= _SAFE_REPLICAS:
            config["min.insync.replicas"] = str(replication - 1)
        new_topics = [NewTopic(topic, partitions, replication, config=config) for topic in topics]
        results = self._get_client().create_topics(new_topics, request_timeout=self._seconds)
        for topic, future in results.items():
            try:
                await asyncio.wrap_future(future)
            except KafkaException as error:
                if error.args[0].code() != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise TransportUnavailable(
                        f"{self._where} did not create the topic {topic} ({self._sanitize(error.args[0].str())}): "
                        "create it yourself, or change the options partitions and replication."
                    ) from error

    async def describe_topic(self, name: str) -> TopicDescription:
        """Read a topic's replication and settings; raise `TransportUnavailable` if the cluster does not answer."""
        try:
            metadata = await asyncio.to_thread(self._get_client().list_topics, name, self._seconds)
        except KafkaException as error:
            reason = self._sanitize(error.args[0].str())
            raise unreachable_error(self._where, reason, check="that it runs") from error
        topic = metadata.topics[name]
        if topic.error is not None:
            return TopicDescription(name=name, error=topic.error.code())
        settings, hidden = await self._read_settings("topic", name)
        broker_settings, _ = await self._read_settings("broker", str(min(metadata.brokers, default=0)))
        return TopicDescription(
            name=name,
            replicas=min((len(partition.replicas) for partition in topic.partitions.values()), default=0),
            settings=settings,
            hidden=hidden,
            auto_create=broker_settings.get(_AUTO_CREATE),
        )

    async def _read_settings(self, kind: str, name: str) -> tuple[Mapping[str, str], str | None]:
        """Return the settings of a topic or a broker, or the reason why the login cannot read them."""
        results = self._get_client().describe_configs([ConfigResource(kind, name)], request_timeout=self._seconds)
        try:
            (entries,) = [await asyncio.wrap_future(future) for future in results.values()]
        except KafkaException as error:
            return {}, self._sanitize(error.args[0].str())
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}, None

    def _get_client(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(dict(self._config))
        return self._client
