"""Settings of the RabbitMQ transport and receiver, the same from a URL, a TOML table and code."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pillarbox.brokers.settings import BrokerSettings, Endpoint, parse_endpoint
from pillarbox.brokers.templates import compile_template
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

__all__ = [
    "NAME",
    "RabbitmqConnectionSettings",
    "RabbitmqReceiverSettings",
    "RabbitmqSettings",
]

NAME: Final = "rabbitmq"
_LONGEST_NAME: Final = 255
_MAX_PREFETCH: Final = 65_535


class RabbitmqConnectionSettings(BrokerSettings, frozen=True, kw_only=True):
    """One broker and the login there.

    The path of the URL is the virtual host, `/` if there is none. Without a login it is guest's.
    """

    role: ClassVar[str]

    auth: Literal["plain", "external"] = "plain"
    """The way to log in: with user and password, or by the client certificate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(("amqp://", "amqps://")):
            raise ConfigError(f"The rabbitmq {self.role}'s URL begins with amqp:// or amqps://.")
        if self.auth == "external" and self.client_certificate is None:
            raise ConfigError("auth=external logs in by a certificate: give client_certificate and client_key.")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("amqps:")

    @property
    def endpoint(self) -> Endpoint:
        """The servers, the virtual host and the login in the URL."""
        return parse_endpoint(self.url, port=5671 if self.is_encrypted else 5672, transport=NAME)

    def describe_clear_login(self) -> str | None:
        return None if self.is_encrypted or not self.endpoint.is_remote else "a URL with amqps://"

    def _check_name(self, option: str, name: str) -> None:
        if len(name.encode()) > _LONGEST_NAME:
            raise ConfigError(f"The option {option} of the rabbitmq {self.role} is over {_LONGEST_NAME} bytes long.")


class RabbitmqSettings(RabbitmqConnectionSettings, frozen=True, kw_only=True):
    """One broker, and how messages are addressed there. Wrong settings are a `ConfigError` when they are made."""

    role: ClassVar[str] = "transport"

    exchange: str = "pillarbox"
    """Where messages are published; a template. Empty is the default exchange: the routing key is a queue's name."""
    routing_key: str = "{topic}"
    """A template."""
    declare: bool = False
    """Declare the exchange, durable, when connecting."""
    exchange_type: str = "topic"
    """What to declare it as."""
    max_payload: int | None = None
    """Bytes of the largest body that the broker takes. If not set, it is learned from the broker's first refusal."""
    management: Secret | None = None
    """The management API's address, for `inspect`: `https://host:15671`, perhaps with a login of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        compile_template(self.exchange, option="exchange", transport=NAME)
        compile_template(self.routing_key, option="routing_key", transport=NAME)
        if self.has_one_exchange:
            self._check_name("exchange", self.exchange)
        if self.declare and not self.exchange:
            raise ConfigError("declare=true has nothing to declare: the default exchange is always there.")
        if self.max_payload is not None and self.max_payload < 1:
            raise ConfigError("The option max_payload of the rabbitmq transport must be at least 1.")

    def describe_clear_login(self) -> str | None:
        way = super().describe_clear_login()
        if way is None and self.management is not None:
            url = self.management.read(option="management")
            is_clear = url.startswith("http:") and parse_endpoint(url, port=15672, transport=NAME).is_remote
            way = "https:// in the option management" if is_clear else None
        return way

    @property
    def has_one_exchange(self) -> bool:
        """All messages go to the same one, and it is not the default one."""
        return bool(self.exchange) and "{" not in self.exchange


class RabbitmqReceiverSettings(RabbitmqConnectionSettings, frozen=True, kw_only=True):
    """One queue of one broker. Wrong settings are a `ConfigError` when they are made."""

    role: ClassVar[str] = "receiver"

    queue: str = ""
    """The queue that is read. Must be given."""
    prefetch: int = 2_000
    """The largest number of messages that the broker delivers before it waits for acknowledgements.

    What a consumer sets aside, behind failing or slow messages of a key, counts too. The receiver begins with one, and
    uses fewer where the messages are large.
    """
    declare: bool = False
    """Declare the queue, durable, if it is missing, and the exchange, and bind them. What exists stays as it is."""
    queue_type: Literal["quorum", "classic"] = "quorum"
    """What to declare the queue as."""
    single_active: bool = False
    """The queue delivers to one consumer at a time: order per key outlives a crash. A declared queue becomes one.

    The prefetch does not adapt then: with every change another consumer would get its turn.
    """
    exchange: str = "pillarbox"
    """The exchange that a declared queue is bound to."""
    exchange_type: str = "topic"
    """What to declare the exchange as, if it is missing."""
    bind: tuple[str, ...] = ("#",)
    """The routing keys of the bindings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.prefetch <= _MAX_PREFETCH:
            raise ConfigError(f"The option prefetch of the rabbitmq receiver must be between 1 and {_MAX_PREFETCH}.")
        if not self.queue:
            raise ConfigError("The rabbitmq receiver needs the name of a queue: add queue=NAME.")
        self._check_name("queue", self.queue)
        self._check_name("exchange", self.exchange)
        for key in self.bind:
            self._check_name("bind", key)
        if self.declare and not self.exchange:
            raise ConfigError("declare=true binds the queue to an exchange: give its name, exchange=NAME.")
        if self.declare and self.queue.startswith("amq."):
            raise ConfigError("A queue whose name begins with amq. cannot be declared: RabbitMQ keeps those names.")
