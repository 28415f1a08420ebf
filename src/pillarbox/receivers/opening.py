"""From a URL to the receiver it names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final, Protocol, cast

from pillarbox.errors import ConfigError
from pillarbox.protocols import Receiver
from pillarbox.transports.settings import listed
from pillarbox.transports.urls import TransportUrl, transport_url

__all__ = ["ReceiverFactory", "known_schemes", "receiver_from_url"]

_GROUP: Final = "pillarbox.receivers"
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_OWN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "amqp": ("rabbitmq", "rabbitmq_receiver"),
        "amqps": ("rabbitmq", "rabbitmq_receiver"),
        "kafka": ("kafka", "kafka_receiver"),
        "nats": ("nats", "nats_receiver"),
        "redis": ("redis", "redis_receiver"),
        "rediss": ("redis", "redis_receiver"),
    }
)
"""Scheme to module and factory, imported when asked for: each needs its own driver."""


class ReceiverFactory(Protocol):
    """What another package registers for its scheme under the entry point group `pillarbox.receivers`."""

    def __call__(self, url: TransportUrl) -> Receiver:
        """The receiver, not yet connected. `ConfigError` for options it does not know."""


def receiver_from_url(url: str, *, options: Mapping[str, object] = _NOTHING) -> Receiver:
    """The receiver that a URL names, not yet connected: its consumer opens it.

    `options` are those beside the URL, such as the rest of a TOML table; one that is given in both is an error.
    `ConfigError` for a scheme or an option that nobody knows, `MissingExtra` when the driver is not installed.
    """
    where = transport_url(url, options=options)
    return _factory(where.scheme)(where)


def known_schemes() -> list[str]:
    """Those of our own receivers, and of the ones that other packages bring."""
    return sorted({*_OWN, *entry_points(group=_GROUP).names})


def _factory(scheme: str) -> ReceiverFactory:
    if scheme in _OWN:
        module, name = _OWN[scheme]
        return cast("ReceiverFactory", getattr(import_module(f"pillarbox.receivers.{module}"), name))
    for entry in entry_points(group=_GROUP, name=scheme):
        try:
            return cast("ReceiverFactory", entry.load())
        except ImportError as error:
            raise ConfigError(f"The receiver for {scheme}: cannot be loaded ({error}); reinstall it.") from error
    if scheme in ("http", "https"):
        raise ConfigError("Requests are received by mounting HttpReceiver().app in a web service, not from a URL.")
    schemes = [f"{known}:" for known in known_schemes()]
    raise ConfigError(f"No installed receiver is called {scheme!r}; URLs begin with {listed(schemes, last='or')}.")
