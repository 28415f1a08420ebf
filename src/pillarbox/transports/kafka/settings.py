"""What the Kafka transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.kafka.client_settings import check_client
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["KafkaSettings", "kafka_settings"]

_PORT: Final = 9092
_SHORTEST: Final = timedelta(milliseconds=500)
_MOST: Final = 1_000_000_000


class KafkaSettings(BrokerSettings, frozen=True, kw_only=True):
    """One cluster, and how to speak to it. Wrong settings are a `ConfigError` when they are made."""

    topic: str = "{topic}"
    """The Kafka topic of a message."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    max_message_bytes: int = 1_000_000
    """Key, headers and payload of one message. Above it, a message is rejected before it is sent."""
    tls: bool = False
    """Encrypt the connection."""
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How user and password are shown to the broker. Others by `client.sasl.mechanism`."""
    declare: bool = False
    """Create topics that are missing, before the first message goes there."""
    partitions: int = 6
    replication: int = 3
    """Of the topics that are created."""
    client: Mapping[str, Secret] = {}
    """More settings of the client, by the names that librdkafka gives them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout < _SHORTEST:
            raise ConfigError("The option timeout of the kafka transport must be at least 500ms.")
        for option, least in (("partitions", 1), ("replication", 1), ("max_message_bytes", 1_000)):
            if not least <= getattr(self, option) <= _MOST:
                raise ConfigError(f"The option {option} of the kafka transport must be between {least} and {_MOST}.")
        address(self.topic, option="topic", transport="kafka")
        check_client(self.client)
        self._check_security()

    def _check_security(self) -> None:
        if not self.tls and (self.ca is not None or self.client_certificate is not None or not self.verify):
            raise ConfigError("The options verify, ca and client_certificate of the kafka transport need tls=true.")
        endpoint = self.endpoint
        if endpoint.path:
            raise ConfigError("The kafka transport's URL has a path; name the topic with the option topic instead.")
        has_login = (self.user or endpoint.user) is not None
        if has_login != ((self.password or endpoint.password) is not None):
            raise ConfigError("The kafka transport needs a user and a password, or neither.")
        if has_login and "sasl.mechanism" in self.client:
            raise ConfigError(
                "The kafka transport has a user and client.sasl.mechanism; write the option sasl instead."
            )
        if has_login and self.sasl == "PLAIN" and not (self.tls or self.insecure):
            raise ConfigError(
                "sasl=PLAIN without tls=true would send the password unencrypted; add tls=true, or use SCRAM-SHA-512, "
                "or if that is meant, insecure=true."
            )

    @property
    def endpoint(self) -> Endpoint:
        """The brokers to begin with, and the login in the URL."""
        return endpoint_of(self.url, port=_PORT, transport="kafka")


def kafka_settings(url: TransportUrl) -> KafkaSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The kafka transport's URL is given twice: leave out the option url.")
    return settings_from(KafkaSettings, {**url.options, "url": url.address}, transport="kafka")
