"""Runs a relay over the tables of a benchmark."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.database import URL
from benchmarks.relay.transports import DeliveryCounter, NoOpTransport
from pillarbox.contracts.store import Store
from pillarbox.contracts.transport import Transport
from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.telemetry import Telemetry

__all__ = ["SETTINGS", "drain_store", "make_relay", "make_store", "measure_rate"]

_DEFAULTS: Final = DestinationSettings()
SETTINGS: Final[dict[str, object]] = {"batch": _DEFAULTS.batch, "window": _DEFAULTS.window}
"""The settings of every relay here: the defaults."""


def make_store(names: Names) -> PostgresStore:
    return PostgresStore(URL, schema=names.schema)


def make_relay(store: Store, *, telemetry: Telemetry | None = None, **transports: Transport) -> Relay:
    """Make a relay with these destinations and default settings, without telemetry unless it is given."""
    destinations = [
        Destination(lambda transport=transport: transport, DestinationSettings(name=name))  # type: ignore[misc]
        for name, transport in transports.items()
    ]
    return Relay(store, destinations, telemetry=telemetry or Telemetry())


async def drain_store(store: Store, *, messages: int, telemetry: Telemetry | None = None) -> float:
    """Deliver everything with one relay, and return the rate from its start to its graceful end."""
    counter = DeliveryCounter(messages)
    started = time.perf_counter()
    async with make_relay(store, telemetry=telemetry, default=NoOpTransport(counter)):
        await counter.rate()
    return messages / (time.perf_counter() - started)


async def measure_rate(names: Names, *, messages: int) -> float:
    """Return the rate at which a relay delivers so many of the waiting messages."""
    counter = DeliveryCounter(messages)
    async with make_relay(make_store(names), default=NoOpTransport(counter)):
        return await counter.rate()
