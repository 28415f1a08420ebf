"""From a transport URL to the transport it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final, Protocol, cast

from pillarbox.errors import ConfigError
from pillarbox.protocols import Transport
from pillarbox.transports.settings import listed
from pillarbox.transports.urls import TransportUrl, transport_url

__all__ = ["TransportFactory", "known_schemes", "transport_from_url"]

_GROUP: Final = "pillarbox.transports"
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class TransportFactory(Protocol):
    """What another package registers for its scheme under the entry point group `pillarbox.transports`."""

    def __call__(self, url: TransportUrl) -> Transport:
        """The transport, not yet connected. `ConfigError` for options it does not know."""


def transport_from_url(url: str, *, options: Mapping[str, object] = _NOTHING) -> Transport:
    """The transport that a URL names, not yet connected: `open()` it.

    `options` are those beside the URL, such as the rest of a TOML table; one that is given in both is an error.
    `ConfigError` for a scheme or an option that nobody knows, `MissingExtra` when the driver is not installed.
    """
    where = transport_url(url, options=options)
    return _factory(where.scheme)(where)


def known_schemes() -> Sequence[str]:
    """Those of our own transports, and of the ones that other packages bring."""
    return sorted({*_OWN, *entry_points(group=_GROUP).names})


def _factory(scheme: str) -> TransportFactory:
    if scheme in _OWN:
        return _OWN[scheme]
    for entry in entry_points(group=_GROUP, name=scheme):
        try:
            return cast("TransportFactory", entry.load())
        except ImportError as error:
            raise ConfigError(f"The transport for {scheme}: cannot be loaded ({error}); reinstall it.") from error
    schemes = [f"{known}:" for known in known_schemes()]
    raise ConfigError(f"No installed transport is called {scheme!r}; URLs begin with {listed(schemes, last='or')}.")


def _http(url: TransportUrl) -> Transport:
    from pillarbox.transports.http import http_transport

    return http_transport(url)


def _handlers(url: TransportUrl) -> Transport:
    from pillarbox.transports.handlers import handlers_transport

    return handlers_transport(url)


def _mqtt(url: TransportUrl) -> Transport:
    from pillarbox.transports.mqtt import mqtt_transport

    return mqtt_transport(url)


def _kafka(url: TransportUrl) -> Transport:
    from pillarbox.transports.kafka import kafka_transport

    return kafka_transport(url)


def _sqs(url: TransportUrl) -> Transport:
    from pillarbox.transports.aws import sqs_transport

    return sqs_transport(url)


def _sns(url: TransportUrl) -> Transport:
    from pillarbox.transports.aws import sns_transport

    return sns_transport(url)


def _memory(url: TransportUrl) -> Transport:
    from pillarbox.transports.memory import memory_transport

    return memory_transport(url)


def _nats(url: TransportUrl) -> Transport:
    from pillarbox.transports.nats import nats_transport

    return nats_transport(url)


def _rabbitmq(url: TransportUrl) -> Transport:
    from pillarbox.transports.rabbitmq import rabbitmq_transport

    return rabbitmq_transport(url)


def _redis(url: TransportUrl) -> Transport:
    from pillarbox.transports.redis import redis_transport

    return redis_transport(url)


_OWN: Final[Mapping[str, TransportFactory]] = MappingProxyType(
    {
        "amqp": _rabbitmq,
        "amqps": _rabbitmq,
        "handlers": _handlers,
        "http": _http,
        "https": _http,
        "kafka": _kafka,
        "memory": _memory,
        "mqtt": _mqtt,
        "mqtts": _mqtt,
        "nats": _nats,
        "redis": _redis,
        "rediss": _redis,
        "sns": _sns,
        "sqs": _sqs,
    }
)
