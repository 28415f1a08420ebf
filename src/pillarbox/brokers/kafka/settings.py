"""Settings of the Kafka transport and receiver, and the client configuration that they become."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal

from pillarbox.brokers.kafka.encoding import is_topic_name
from pillarbox.brokers.settings import BrokerSettings, Endpoint, TransportUrl, parse_endpoint, parse_settings
from pillarbox.brokers.templates import compile_template
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

__all__ = [
    "ClientConfig",
    "KafkaReceiverSettings",
    "KafkaSettings",
    "build_connection_config",
    "build_consumer_config",
    "build_producer_config",
    "build_run_producer_config",
    "kafka_receiver_settings",
    "kafka_settings",
    "read_secrets",
]

ClientConfig = dict[str, str | int | bool]

_DEFAULT_PORT: Final = 9092
_MIN_TIMEOUT: Final = timedelta(milliseconds=500)
_MAX_COUNT: Final = 1_000_000_000
_FETCH_BYTES: Final = 16 * 1024 * 1024


class KafkaSettings(BrokerSettings, frozen=True, kw_only=True):
    """One cluster, and how to send to it. Raises `ConfigError` for wrong settings."""

    topic: str = "{topic}"
    """The Kafka topic of a message."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    max_message_bytes: int = 1_000_000
    """Limit for key, headers and payload of one message. A larger message is rejected before it is sent."""
    tls: bool = False
    """Encrypt the connection."""
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """Mechanism that proves user and password to the broker. Others by `client.sasl.mechanism`."""
    declare: bool = False
    """Create missing topics before the first message is sent to them."""
    partitions: int = 6
    """Partitions of a topic that is created."""
    replication: int = 3
    """Replicas of a topic that is created."""
    client: Mapping[str, Secret] = {}
    """More settings of the client, by librdkafka's names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout < _MIN_TIMEOUT:
            raise ConfigError("The option timeout of the kafka transport must be at least 500ms.")
        for option, least in (("partitions", 1), ("replication", 1), ("max_message_bytes", 1_000)):
            if not least <= getattr(self, option) <= _MAX_COUNT:
                raise ConfigError(
                    f"The option {option} of the kafka transport must be between {least} and {_MAX_COUNT}."
                )
        compile_template(self.topic, option="topic", transport="kafka")
        _check_client_options(self.client)
        self._check_security()

    def _check_security(self) -> None:
        if not self.tls and (self.ca is not None or self.client_certificate is not None or not self.verify):
            raise ConfigError("The options verify, ca and client_certificate of the kafka transport need tls=true.")
        endpoint = self.endpoint
        if endpoint.path:
            raise ConfigError("The kafka transport's URL has a path; name the topic with the option topic instead.")
        has_user = (self.user or endpoint.user) is not None
        if has_user != ((self.password or endpoint.password) is not None):
            raise ConfigError("The kafka transport needs a user and a password, or neither.")
        if has_user and "sasl.mechanism" in self.client:
            raise ConfigError(
                "The kafka transport has a user and client.sasl.mechanism; write the option sasl instead."
            )
        if has_user and self.sasl == "PLAIN" and not (self.tls or self.insecure):
            raise ConfigError(
                "sasl=PLAIN without tls=true would send the password unencrypted; add tls=true, or use SCRAM-SHA-512, "
                "or if that is meant, insecure=true."
            )

    @property
    def endpoint(self) -> Endpoint:
        """The bootstrap servers, and the login in the URL."""
        return parse_endpoint(self.url, port=_DEFAULT_PORT, transport="kafka")

    def describe_clear_login(self) -> str | None:
        has_login = self.user or self.endpoint.user or "sasl.mechanism" in self.client
        return "the option tls=true" if has_login and not self.tls and self.endpoint.is_remote else None


def kafka_settings(url: TransportUrl) -> KafkaSettings:
    """Build the transport's settings from a URL and the options beside it."""
    return parse_settings(KafkaSettings, url, broker="kafka")


_PROTECTED_PRODUCER_OPTIONS: Final = frozenset(
    {
        "acks", "request.required.acks", "enable.idempotence", "retries", "message.send.max.retries",
        "max.in.flight", "max.in.flight.requests.per.connection", "delivery.report.only.error", "queuing.strategy",
        "transactional.id", "partitioner", "allow.auto.create.topics", "enable.gapless.guarantee",
    }
)  # fmt: skip
"""With other values than ours, a message could be lost, or overtaken by a later one of its key."""
_OPTION_FOR: Final = MappingProxyType(
    {
        "bootstrap.servers": "the URL",
        "metadata.broker.list": "the URL",
        "security.protocol": "the option tls",
        "sasl.username": "the option user",
        "sasl.password": "the option password",
        "ssl.ca.location": "the option ca",
        "ssl.certificate.location": "the option client_certificate",
        "ssl.key.location": "the option client_key",
        "enable.ssl.certificate.verification": "the option verify",
        "ssl.endpoint.identification.algorithm": "the option verify",
        "message.timeout.ms": "the option timeout",
        "delivery.timeout.ms": "the option timeout",
        "message.max.bytes": "the option max_message_bytes",
        "compression.type": "the option compression",
        "compression.codec": "the option compression",
    }
)


def _check_client_options(client: Mapping[str, Secret]) -> None:
    for name in client:
        if name in _PROTECTED_PRODUCER_OPTIONS:
            raise ConfigError(
                f"client.{name} of the kafka transport cannot be set: messages could be lost or change their order."
            )
        if name in _OPTION_FOR:
            raise ConfigError(f"client.{name} of the kafka transport has another place: use {_OPTION_FOR[name]}.")
        if name.endswith("_cb") or name.startswith(("test.", "plugin.")):
            raise ConfigError(f"client.{name} of the kafka transport cannot be set.")


_PROTECTED_CONSUMER_OPTIONS: Final = frozenset(
    {
        "enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms", "isolation.level",
        "enable.partition.eof", "offset.store.method", "group.protocol", "group.remote.assignor",
        "heartbeat.interval.ms", "partition.assignment.strategy",
    }
)  # fmt: skip
"""With other values than ours, a message could be lost, or handed out twice without being marked as redelivered."""
_RECEIVER_OPTION_FOR: Final = MappingProxyType(
    {
        "group.id": "the option group",
        "auto.offset.reset": "the option start",
        "session.timeout.ms": "the option session_timeout",
    }
)


class KafkaReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One consumer group and its topics. Raises `ConfigError` for wrong settings."""

    topics: tuple[str, ...]
    """Topics to read."""
    group: str
    """Consumer group. Receivers of the same group share the partitions."""
    start: Literal["earliest", "latest"] = "earliest"
    """Start in a partition for which the group has no committed offset."""
    assignor: Literal["cooperative-sticky", "range", "roundrobin"] = "cooperative-sticky"
    """Assignment strategy. All members of the group need the same one, or one of the same kind."""
    session_timeout: timedelta = timedelta(seconds=45)
    """Time after our last heartbeat until the cluster gives our partitions to others."""
    tls: bool = False
    """Encrypt the connection."""
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """Mechanism that proves user and password to the broker. Others by `client.sasl.mechanism`."""
    client: Mapping[str, Secret] = {}
    """More settings of the client, by librdkafka's names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith("kafka://"):
            raise ConfigError(
                "The kafka receiver's URL begins with kafka://; for an encrypted connection set tls=true."
            )
        if not self.topics or not all(is_topic_name(topic) for topic in self.topics):
            raise ConfigError("The option topics of the kafka receiver is one or more names, with commas between them.")
        if not self.group or len(self.group) > 255 or not self.group.isprintable():
            raise ConfigError("The option group of the kafka receiver is no name: write 1 to 255 characters.")
        if not timedelta(seconds=1) <= self.session_timeout <= timedelta(hours=1):
            raise ConfigError("The option session_timeout of the kafka receiver must be between 1 second and 1 hour.")
        for name in self.client:
            if name in _PROTECTED_CONSUMER_OPTIONS:
                raise ConfigError(f"client.{name} of the kafka receiver cannot be set: messages could be lost.")
            if name in _RECEIVER_OPTION_FOR:
                raise ConfigError(
                    f"client.{name} of the kafka receiver has another place: use {_RECEIVER_OPTION_FOR[name]}."
                )
        _ = self.cluster  # checks the options that it shares with the transport

    @property
    def cluster(self) -> KafkaSettings:
        """The cluster and the login, as the transport's settings have them."""
        return KafkaSettings(
            url=self.url, user=self.user, password=self.password, timeout=self.timeout, insecure=self.insecure,
            verify=self.verify, ca=self.ca, client_certificate=self.client_certificate, client_key=self.client_key,
            tls=self.tls, sasl=self.sasl, client=self.client,
        )  # fmt: skip


def kafka_receiver_settings(url: TransportUrl) -> KafkaReceiverSettings:
    """Build the receiver's settings from a URL and the options beside it."""
    for option in ("topics", "group"):
        if option not in url.options:
            raise ConfigError(f"The kafka receiver needs {option}: add {option}=NAME.")
    return parse_settings(KafkaReceiverSettings, url, broker="kafka", kind="receiver")


_TIMEOUT_SCAN: Final = timedelta(seconds=1)
"""Interval at which the client looks for messages whose time is up."""
_MAX_PROPAGATION: Final = timedelta(seconds=3)


def build_producer_config(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Build the whole configuration of a producer: acknowledged by all in-sync replicas, in order per partition."""
    # The client must give a message up early enough that its report comes within the timeout.
    message_timeout = max(settings.timeout - _TIMEOUT_SCAN, settings.timeout / 2)
    tunable: ClientConfig = {
        # Messages that are there at once go together anyway, and a single key should not wait for more of them.
        "linger.ms": 0,
        # A silent connection is given up while there is time for another one.
        "socket.timeout.ms": _to_milliseconds(message_timeout / 2),
        # So long, a missing topic may be one that was just created.
        "topic.metadata.propagation.max.ms": _to_milliseconds(min(message_timeout / 3, _MAX_PROPAGATION)),
    }
    return {
        **tunable,
        **build_connection_config(settings, environ=environ),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "message.timeout.ms": _to_milliseconds(message_timeout),
        "message.max.bytes": settings.max_message_bytes,
        "compression.type": settings.compression,
    }


def build_run_producer_config(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Build the configuration of a producer that ends when it cannot deliver a message: nothing later gets past it."""
    return {
        **build_producer_config(settings, environ=environ),
        "enable.gapless.guarantee": True,
        # The guarantee does not cover messages whose time is up. So none has a time, and the connection ends the
        # producer when its own time is up.
        "message.timeout.ms": 0,
    }


def build_consumer_config(settings: KafkaReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Build the whole configuration of a consumer: it commits nothing by itself and skips aborted transactions."""
    session_timeout = round(settings.session_timeout.total_seconds() * 1_000)
    return {
        **build_connection_config(settings.cluster, environ=environ),
        "group.id": settings.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": settings.start,
        "isolation.level": "read_committed",
        "partition.assignment.strategy": settings.assignor,
        "session.timeout.ms": session_timeout,
        "heartbeat.interval.ms": min(3_000, session_timeout // 4),
    }


def build_fetch_config(pending_bytes: int) -> ClientConfig:
    """Build the limits of what the client fetches in advance. `client.…` sets others."""
    size = min(_FETCH_BYTES, pending_bytes)
    return {
        "queued.max.messages.kbytes": max(1, size // 1024),
        # The client takes none below the largest message that it would send. Larger messages come one by one.
        "fetch.max.bytes": max(1_000_000, size),
    }


def build_connection_config(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Build the configuration of any client: servers, login and TLS."""
    endpoint = settings.endpoint
    login = settings.login(endpoint, environ=environ)
    has_sasl = login.user is not None or "sasl.mechanism" in settings.client
    config: ClientConfig = {
        "client.id": "pillarbox",
        "log_level": 0,
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        **_read_client_options(settings.client, environ),
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in endpoint.hosts
        ),
        "security.protocol": ("SASL_" if has_sasl else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        # A request for a topic must not create it, not even where the cluster would do so.
        "allow.auto.create.topics": False,
    }
    if login.user is not None and login.password is not None:
        config |= {"sasl.mechanism": settings.sasl, "sasl.username": login.user, "sasl.password": login.password}
    return config | _build_tls_config(settings) if settings.tls else config


def _build_tls_config(settings: KafkaSettings) -> ClientConfig:
    config: ClientConfig = {
        "enable.ssl.certificate.verification": settings.verify,
        "ssl.endpoint.identification.algorithm": "https" if settings.verify else "none",
    }
    if settings.ca is not None:
        config["ssl.ca.location"] = settings.ca
    if settings.client_certificate is not None:
        config["ssl.certificate.location"] = settings.client_certificate
        config["ssl.key.location"] = settings.client_key or settings.client_certificate
    return config


_SECRET_WORDS: Final = ("password", "secret", "key.pem", "assertion", "oauthbearer.config", "keystore")


def read_secrets(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the values that no log or error may show."""
    options = _read_client_options(settings.client, environ)
    secrets = [value for name, value in options.items() if any(word in name for word in _SECRET_WORDS)]
    password = settings.login(settings.endpoint, environ=environ).password
    return [*secrets, password] if password else secrets


def _read_client_options(client: Mapping[str, Secret], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value.read(option=f"client.{name}", environ=environ) for name, value in client.items()}


def _to_milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1_000)
