"""Settings of the MQTT transport."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal

from pillarbox.brokers.settings import BrokerSettings, Endpoint, TransportUrl, parse_endpoint, parse_settings
from pillarbox.brokers.templates import compile_template
from pillarbox.errors import ConfigError

__all__ = ["MqttSettings", "NoSubscribers", "mqtt_settings"]

NoSubscribers = Literal["accept", "refuse", "reject"]
"""Meaning of "no matching subscribers" for a message: delivered, tried again, or failed at once."""

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_CLIENT_ID: Final = re.compile(r"[0-9A-Za-z_.:-]{1,64}")


class MqttSettings(BrokerSettings, frozen=True, kw_only=True):
    """One broker, and how to publish there. Raises `ConfigError` for wrong settings."""

    topic: str = "{topic}"
    """The MQTT topic of a message."""
    qos: Literal[1, 2] = 1
    """1: delivered at least once. 2: once as long as the connection lasts, at the price of a second round trip."""
    retain: bool = False
    """Let the broker keep the last message of each topic for later subscribers."""
    no_subscribers: NoSubscribers = "refuse"
    """Meaning of an acknowledgement that nobody subscribes: the broker has dropped the message."""
    client_id: str = "pillarbox"
    """Beginning of client ids. A random end is added, because two connections with one id would close each other."""
    keepalive: timedelta = timedelta(seconds=30)
    """A connection that is silent for longer is checked with a ping."""
    window: int = 1_000
    """Limit of messages in flight, if the broker allows as many (its Receive Maximum)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError("The mqtt transport's URL has a path, which means nothing; the option topic says where.")
        compile_template(self.topic, option="topic", transport="mqtt")
        if not self.is_encrypted and (self.ca or self.client_certificate):
            raise ConfigError("The options ca and client_certificate of the mqtt transport need a URL with mqtts://.")
        if not _CLIENT_ID.fullmatch(self.client_id):
            raise ConfigError("The option client_id of the mqtt transport takes up to 64 letters, digits and _ . : -.")
        if not timedelta(seconds=1) <= self.keepalive <= timedelta(hours=18):
            raise ConfigError("The option keepalive of the mqtt transport must be between 1 s and 18 h.")
        if not 1 <= self.window <= 65_535:
            raise ConfigError("The option window of the mqtt transport must be between 1 and 65535.")

    @property
    def is_encrypted(self) -> bool:
        """True for TLS from the first byte."""
        return self.url.startswith("mqtts:")

    @property
    def endpoint(self) -> Endpoint:
        """The servers, tried in this order, and the login in the URL."""
        return parse_endpoint(self.url, port=_PORTS.get(self.url.partition(":")[0], 1883), transport="mqtt")

    def describe_clear_login(self) -> str | None:
        endpoint = self.endpoint
        has_login = self.password or endpoint.password
        return "a URL with mqtts://" if has_login and not self.is_encrypted and endpoint.is_remote else None


def mqtt_settings(url: TransportUrl) -> MqttSettings:
    """Build the settings from a URL and the options beside it."""
    return parse_settings(MqttSettings, url, broker="mqtt")
