"""What the RabbitMQ transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

from typing import Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import settings_from
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "RabbitmqSettings", "rabbitmq_settings"]

NAME = "rabbitmq"
_SCHEMES = ("amqp://", "amqps://")
_LONGEST_NAME = 255


class RabbitmqSettings(BrokerSettings, frozen=True, kw_only=True):
    """One broker, and how messages are addressed there. Wrong settings are a `ConfigError` when they are made.

    The path of the URL is the virtual host, `/` if there is none. Without a login it is guest's.
    """

    exchange: str = "pillarbox"
    """Where messages are published; a template. Empty is the default exchange: the routing key is a queue's name."""
    routing_key: str = "{topic}"
    """A template."""
    declare: bool = False
    """Declare the exchange, durable, when connecting."""
    exchange_type: str = "topic"
    """What to declare it as."""
    auth: Literal["plain", "external"] = "plain"
    """How to log in: with user and password, or by the client certificate."""
    max_payload: int | None = None
    """Bytes of the largest body that the broker takes. If not set, it is learned from the broker's first refusal."""
    management: Secret | None = None
    """The management API's address, for `inspect`: `https://host:15671`, perhaps with a login of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(_SCHEMES):
            raise ConfigError("The rabbitmq transport's URL begins with amqp:// or amqps://.")
        address(self.exchange, option="exchange", transport=NAME)
        address(self.routing_key, option="routing_key", transport=NAME)
        if self.has_one_exchange and len(self.exchange.encode()) > _LONGEST_NAME:
            raise ConfigError(f"The option exchange of the rabbitmq transport is over {_LONGEST_NAME} bytes long.")
        if self.declare and not self.exchange:
            raise ConfigError("declare=true has nothing to declare: the default exchange is always there.")
        if self.max_payload is not None and self.max_payload < 1:
            raise ConfigError("The option max_payload of the rabbitmq transport must be at least 1.")
        if self.auth == "external" and self.client_certificate is None:
            raise ConfigError("auth=external logs in by a certificate: give client_certificate and client_key.")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("amqps:")

    @property
    def has_one_exchange(self) -> bool:
        """All messages go to the same one, and it is not the default one."""
        return bool(self.exchange) and "{" not in self.exchange


def rabbitmq_settings(url: TransportUrl) -> RabbitmqSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The rabbitmq transport's URL is given twice: leave out the option url.")
    return settings_from(RabbitmqSettings, {**url.options, "url": url.address}, transport=NAME)
