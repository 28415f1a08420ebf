"""What the MQTT transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings, Endpoint, endpoint_of
from pillarbox.transports.settings import settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["MqttSettings", "NoSubscribers", "mqtt_settings"]

NoSubscribers = Literal["accept", "refuse", "reject"]
"""What the broker's "no matching subscribers" means for a message: delivered, to be tried again, or failed at once."""

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_CLIENT_ID: Final = re.compile(r"[0-9A-Za-z_.:-]{1,64}")


class MqttSettings(BrokerSettings, frozen=True, kw_only=True):
    """One broker, and how to publish there. Wrong settings are a `ConfigError` when they are made."""

    topic: str = "{topic}"
    """Where a message goes: a topic name, made from the message."""
    qos: Literal[1, 2] = 1
    """1: taken at least once. 2: taken once as long as the connection stands, at the price of a second round trip."""
    retain: bool = False
    """Let the broker keep the last message of each topic for later subscribers."""
    no_subscribers: NoSubscribers = "refuse"
    """A message that nobody subscribes to is gone, though the broker has taken it."""
    client_id: str = "pillarbox"
    """What client ids begin with. A random end is added: two connections with one id would throw each other out."""
    keepalive: timedelta = timedelta(seconds=30)
    """A connection without a word for longer is asked whether it still stands."""
    window: int = 1_000
    """Messages under way at once, if the broker allows as many (its Receive Maximum)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint.path:
            raise ConfigError("The mqtt transport's URL has a path, which means nothing; the option topic says where.")
        address(self.topic, option="topic", transport="mqtt")
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
        """TLS from the first byte."""
        return self.url.startswith("mqtts:")

    @property
    def endpoint(self) -> Endpoint:
        """The servers, tried in this order, and the login."""
        return endpoint_of(self.url, port=_PORTS.get(self.url.partition(":")[0], 1883), transport="mqtt")


def mqtt_settings(url: TransportUrl) -> MqttSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The mqtt transport's URL is given twice: leave out the option url.")
    return settings_from(MqttSettings, {**url.options, "url": url.address}, transport="mqtt")
