"""Settings of librdkafka: those that keep messages safe, and those that a user may add. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pillarbox.errors import ConfigError
from pillarbox.transports.secret import Secret

if TYPE_CHECKING:
    from pillarbox.transports.kafka.settings import KafkaSettings

__all__ = ["ClientConfig", "check_client", "client_secrets", "connection_config", "message_timeout", "producer_config"]

ClientConfig = dict[str, str | int | bool]

_SAFETY: Final = frozenset(
    {
        "acks", "request.required.acks", "enable.idempotence", "retries", "message.send.max.retries",
        "max.in.flight", "max.in.flight.requests.per.connection", "delivery.report.only.error", "queuing.strategy",
        "transactional.id", "partitioner", "allow.auto.create.topics", "enable.gapless.guarantee",
    }
)  # fmt: skip
"""With other values than ours, a message could be lost, or overtaken by a later one of its key."""
_ELSEWHERE: Final = MappingProxyType(
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
_SECRET: Final = ("password", "secret", "key.pem", "assertion", "oauthbearer.config", "keystore")
_SCAN: Final = timedelta(seconds=1)
"""The client looks for messages whose time is up once a second."""
_LONGEST_SEARCH: Final = timedelta(seconds=3)


def check_client(client: Mapping[str, Secret]) -> None:
    """`ConfigError` for a setting of the client that would weaken a promise, or that has a place of its own."""
    for name in client:
        if name in _SAFETY:
            raise ConfigError(
                f"client.{name} of the kafka transport cannot be set: messages could be lost or change their order."
            )
        if name in _ELSEWHERE:
            raise ConfigError(f"client.{name} of the kafka transport has another place: use {_ELSEWHERE[name]}.")
        if name.endswith("_cb") or name.startswith(("test.", "plugin.")):
            raise ConfigError(f"client.{name} of the kafka transport cannot be set.")


def message_timeout(timeout: timedelta) -> timedelta:
    """When the client gives a message up by itself: early enough that its answer comes within the timeout."""
    return max(timeout - _SCAN, timeout / 2)


def producer_config(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Everything a producer is told. An answer is the word of all in-sync replicas: once, in order per partition."""
    patience = message_timeout(settings.timeout)
    tunable: ClientConfig = {
        # What is there at once goes together anyway, and a key whose messages go one by one should not wait for more.
        "linger.ms": 0,
        # A connection that is silent for this long is given up while there is time for another.
        "socket.timeout.ms": _milliseconds(patience / 2),
        # For this long a missing topic may be one that was just created.
        "topic.metadata.propagation.max.ms": _milliseconds(min(patience / 3, _LONGEST_SEARCH)),
    }
    return {
        **tunable,
        **connection_config(settings, environ=environ),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "message.timeout.ms": _milliseconds(patience),
        "message.max.bytes": settings.max_message_bytes,
        "compression.type": settings.compression,
    }


def connection_config(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Where the brokers are, as whom we come, and how both sides prove who they are."""
    endpoint = settings.endpoint
    login = settings.login(endpoint, environ=environ)
    has_sasl = login.user is not None or "sasl.mechanism" in settings.client
    config: ClientConfig = {
        "client.id": "pillarbox",
        "log_level": 0,
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        **_given(settings.client, environ),
        "bootstrap.servers": ",".join(_place(host, port) for host, port in endpoint.hosts),
        "security.protocol": ("SASL_" if has_sasl else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        # Asking for a topic must not create it, not even where the cluster would let it.
        "allow.auto.create.topics": False,
    }
    if login.user is not None and login.password is not None:
        config |= {"sasl.mechanism": settings.sasl, "sasl.username": login.user, "sasl.password": login.password}
    return config | _tls(settings) if settings.tls else config


def _tls(settings: KafkaSettings) -> ClientConfig:
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


def client_secrets(settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Values that no text may show."""
    password = settings.login(settings.endpoint, environ=environ).password
    named = [value for name, value in _given(settings.client, environ).items() if _is_secret(name)]
    return [*named, *([password] if password else [])]


def _is_secret(name: str) -> bool:
    return any(part in name for part in _SECRET)


def _given(client: Mapping[str, Secret], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value.read(option=f"client.{name}", environ=environ) for name, value in client.items()}


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1_000)
