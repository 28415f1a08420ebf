"""Transports and receivers from a URL: those of Pillarbox, and those that other packages register."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar, cast

import msgspec

from pillarbox.brokers.settings import TransportUrl, parse_transport_url
from pillarbox.contracts.receiver import Receiver
from pillarbox.contracts.transport import Transport
from pillarbox.errors import ConfigError
from pillarbox.settings import join_words

__all__ = [
    "ReceiverFactory",
    "TransportFactory",
    "receiver_from_url",
    "receiver_schemes",
    "transport_from_url",
    "transport_schemes",
]

_NO_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({})


class TransportFactory(Protocol):
    """Builds a transport. Other packages register theirs by URL scheme, as entry points of `pillarbox.transports`."""

    def __call__(self, url: TransportUrl) -> Transport:
        """Return the transport, not yet connected; raise `ConfigError` for options it does not know."""


class ReceiverFactory(Protocol):
    """Builds a receiver. Other packages register theirs by URL scheme, as entry points of `pillarbox.receivers`."""

    def __call__(self, url: TransportUrl) -> Receiver:
        """Return the receiver, not yet connected; raise `ConfigError` for options it does not know."""


def transport_from_url(url: str, *, options: Mapping[str, object] = _NO_OPTIONS) -> Transport:
    """Return the transport that a URL names, not yet connected: `open()` it.

    `options` are those beside the URL, such as the rest of a TOML table; one that is given in both is an error.
    Raises `ConfigError` for a scheme or an option that nobody knows, `MissingExtra` when the driver is not installed.
    """
    parsed = parse_transport_url(url, options=options)
    return _TRANSPORTS.find(parsed.scheme)(parsed)


def receiver_from_url(url: str, *, options: Mapping[str, object] = _NO_OPTIONS) -> Receiver:
    """Return the receiver that a URL names, not yet connected: its consumer opens it.

    Options and errors are those of `transport_from_url`.
    """
    parsed = parse_transport_url(url, options=options)
    if parsed.scheme in ("http", "https") and parsed.scheme not in receiver_schemes():
        raise ConfigError("Requests are received by mounting HttpReceiver().app in a web service, not from a URL.")
    return _RECEIVERS.find(parsed.scheme)(parsed)


def transport_schemes() -> Sequence[str]:
    """Return the URL schemes of all installed transports."""
    return _TRANSPORTS.schemes()


def receiver_schemes() -> Sequence[str]:
    """Return the URL schemes of all installed receivers."""
    return _RECEIVERS.schemes()


F = TypeVar("F", TransportFactory, ReceiverFactory)


class _Registry(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """Factories by URL scheme."""

    kind: str
    group: str
    """The entry point group of other packages."""
    own: Mapping[str, str]
    """Scheme to `module:function` below `pillarbox.brokers`. Imported when it is needed: each needs its own driver."""

    def find(self, scheme: str) -> F:
        if scheme in self.own:
            module, _, function = self.own[scheme].partition(":")
            return cast("F", getattr(import_module(f"pillarbox.brokers.{module}"), function))
        for entry in entry_points(group=self.group, name=scheme):
            try:
                return cast("F", entry.load())
            except ImportError as error:
                raise ConfigError(f"The {self.kind} for {scheme}: cannot be loaded ({error}); reinstall it.") from error
        known = join_words([f"{scheme}:" for scheme in self.schemes()], last="or")
        near = get_close_matches(scheme, self.schemes(), n=1)
        nearest = f"; the nearest is {near[0]}:" if near else ""
        raise ConfigError(f"No installed {self.kind} is called {scheme!r}; URLs begin with {known}{nearest}.")

    def schemes(self) -> Sequence[str]:
        return sorted({*self.own, *entry_points(group=self.group).names})


_TRANSPORTS: Final = _Registry[TransportFactory](
    kind="transport",
    group="pillarbox.transports",
    own={
        "amqp": "rabbitmq:rabbitmq_transport",
        "amqps": "rabbitmq:rabbitmq_transport",
        "handlers": "handlers:handlers_transport",
        "http": "http:http_transport",
        "https": "http:http_transport",
        "kafka": "kafka:kafka_transport",
        "memory": "memory:memory_transport",
        "mqtt": "mqtt:mqtt_transport",
        "mqtts": "mqtt:mqtt_transport",
        "nats": "nats:nats_transport",
        "redis": "redis:redis_transport",
        "redis+sentinel": "redis:redis_transport",
        "rediss": "redis:redis_transport",
        "rediss+sentinel": "redis:redis_transport",
        "sns": "aws:sns_transport",
        "sqs": "aws:sqs_transport",
    },
)
_RECEIVERS: Final = _Registry[ReceiverFactory](
    kind="receiver",
    group="pillarbox.receivers",
    own={
        "amqp": "rabbitmq:rabbitmq_receiver",
        "amqps": "rabbitmq:rabbitmq_receiver",
        "kafka": "kafka:kafka_receiver",
        "nats": "nats:nats_receiver",
        "redis": "redis:redis_receiver",
        "redis+sentinel": "redis:redis_receiver",
        "rediss": "redis:redis_receiver",
        "rediss+sentinel": "redis:redis_receiver",
    },
)
