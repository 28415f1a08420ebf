"""What the Kafka receiver can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings
from pillarbox.transports.kafka.client_settings import ClientConfig, connection_config
from pillarbox.transports.kafka.records import is_topic
from pillarbox.transports.kafka.settings import KafkaSettings
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "KafkaReceiverSettings", "consumer_config", "kafka_receiver_settings"]

NAME: Final = "kafka"
_SAFETY: Final = frozenset(
    {
        "enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms", "isolation.level",
        "enable.partition.eof", "offset.store.method", "group.protocol", "group.remote.assignor",
        "heartbeat.interval.ms", "partition.assignment.strategy",
    }
)  # fmt: skip
"""With other values than ours, a message could be lost, or handed out twice unseen."""
_ELSEWHERE: Final = {
    "group.id": "the option group",
    "auto.offset.reset": "the option start",
    "session.timeout.ms": "the option session_timeout",
}


class KafkaReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One consumer group, and its topics. Wrong settings are a `ConfigError` when they are made."""

    topics: tuple[str, ...]
    """What is read."""
    group: str
    """The name that the cluster keeps our place under. Receivers with the same one share the partitions."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to begin in a partition that the group has no place in."""
    assignor: Literal["cooperative-sticky", "range", "roundrobin"] = "cooperative-sticky"
    """How partitions are shared out. The same, or one of the same kind, in all of the group."""
    session_timeout: timedelta = timedelta(seconds=45)
    """How long after our last sign of life the cluster gives our partitions to others."""
    tls: bool = False
    """Encrypt the connection."""
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How user and password are shown to the broker. Others by `client.sasl.mechanism`."""
    client: Mapping[str, Secret] = {}
    """More settings of the client, by the names that librdkafka gives them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith("kafka://"):
            raise ConfigError(
                "The kafka receiver's URL begins with kafka://; for an encrypted connection set tls=true."
            )
        if not self.topics or not all(is_topic(topic) for topic in self.topics):
            raise ConfigError("The option topics of the kafka receiver is one or more names, with commas between them.")
        if not self.group or len(self.group) > 255 or not self.group.isprintable():
            raise ConfigError("The option group of the kafka receiver is no name: write 1 to 255 characters.")
        if not timedelta(seconds=1) <= self.session_timeout <= timedelta(hours=1):
            raise ConfigError("The option session_timeout of the kafka receiver must be between 1 second and 1 hour.")
        for name in self.client:
            if name in _SAFETY:
                raise ConfigError(f"client.{name} of the kafka receiver cannot be set: messages could be lost.")
            if name in _ELSEWHERE:
                raise ConfigError(f"client.{name} of the kafka receiver has another place: use {_ELSEWHERE[name]}.")
        _ = self.cluster

    @property
    def cluster(self) -> KafkaSettings:
        """Where to connect, and as whom: the same as for the transport."""
        return KafkaSettings(
            url=self.url, user=self.user, password=self.password, timeout=self.timeout, insecure=self.insecure,
            verify=self.verify, ca=self.ca, client_certificate=self.client_certificate, client_key=self.client_key,
            tls=self.tls, sasl=self.sasl, client=self.client,
        )  # fmt: skip


def consumer_config(settings: KafkaReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Everything the client is told. Nothing is committed but by us; of transactions that failed nothing is seen."""
    session = round(settings.session_timeout.total_seconds() * 1000)
    return {
        **connection_config(settings.cluster, environ=environ),
        "group.id": settings.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": settings.start,
        "isolation.level": "read_committed",
        "partition.assignment.strategy": settings.assignor,
        "session.timeout.ms": session,
        "heartbeat.interval.ms": min(3_000, session // 4),
    }


def kafka_receiver_settings(url: TransportUrl) -> KafkaReceiverSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The kafka receiver's URL is given twice: leave out the option url.")
    for option, example in (("topics", "NAME"), ("group", "NAME")):
        if option not in url.options:
            raise ConfigError(f"The kafka receiver needs {option}: add {option}={example}.")
    return settings_from(KafkaReceiverSettings, {**url.options, "url": url.address}, transport=NAME)
