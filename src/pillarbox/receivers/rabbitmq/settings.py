"""What the RabbitMQ receiver can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

from typing import Final, Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.endpoints import BrokerSettings
from pillarbox.transports.settings import settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["NAME", "RabbitmqReceiverSettings", "rabbitmq_receiver_settings"]

NAME: Final = "rabbitmq"
_SCHEMES: Final = ("amqp://", "amqps://")
_LONGEST_NAME: Final = 255
_MOST: Final = 65_535


class RabbitmqReceiverSettings(BrokerSettings, frozen=True, kw_only=True):
    """One queue of one broker. Wrong settings are a `ConfigError` when they are made.

    The path of the URL is the virtual host, `/` if there is none. Without a login it is guest's.
    """

    queue: str
    """What is read."""
    prefetch: int = 200
    """How many messages the broker hands out before it waits for acknowledgements."""
    declare: bool = False
    """Make the queue, durable, if it is not there, and the exchange, and bind them. What is there stays as it is."""
    queue_type: Literal["quorum", "classic"] = "quorum"
    """What to make it."""
    single_active: bool = False
    """Make it a queue that gives everything to one consumer at a time: order per key outlives a crash."""
    exchange: str = "pillarbox"
    """What a declared queue is bound to."""
    exchange_type: str = "topic"
    """What to make the exchange, if it is not there."""
    bind: tuple[str, ...] = ("#",)
    """The routing keys of the bindings."""
    auth: Literal["plain", "external"] = "plain"
    """How to log in: with user and password, or by the client certificate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(_SCHEMES):
            raise ConfigError("The rabbitmq receiver's URL begins with amqp:// or amqps://.")
        if not 1 <= self.prefetch <= _MOST:
            raise ConfigError(f"The option prefetch of the rabbitmq receiver must be between 1 and {_MOST}.")
        self._check_names()
        if self.auth == "external" and self.client_certificate is None:
            raise ConfigError("auth=external logs in by a certificate: give client_certificate and client_key.")

    def _check_names(self) -> None:
        if not self.queue:
            raise ConfigError("The rabbitmq receiver needs the name of a queue: add queue=NAME.")
        for option, value in (
            ("queue", self.queue),
            ("exchange", self.exchange),
            *(("bind", key) for key in self.bind),
        ):
            if len(value.encode()) > _LONGEST_NAME:
                raise ConfigError(f"The option {option} of the rabbitmq receiver is over {_LONGEST_NAME} bytes long.")
        if self.declare and not self.exchange:
            raise ConfigError("declare=true binds the queue to an exchange: give its name, exchange=NAME.")
        if self.declare and self.queue.startswith("amq."):
            raise ConfigError("A queue whose name begins with amq. cannot be declared: RabbitMQ keeps those names.")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("amqps:")


def rabbitmq_receiver_settings(url: TransportUrl) -> RabbitmqReceiverSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The rabbitmq receiver's URL is given twice: leave out the option url.")
    if "queue" not in url.options:
        raise ConfigError("The rabbitmq receiver needs the name of a queue: add queue=NAME.")
    return settings_from(RabbitmqReceiverSettings, {**url.options, "url": url.address}, transport=NAME)
