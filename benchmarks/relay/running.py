"""Runs a relay over a benchmark's tables, for as long as a figure needs."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.database import URL
from benchmarks.relay.transports import NoOp, Tally
from pillarbox.contracts.store import Store
from pillarbox.contracts.transport import Transport
from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.telemetry import Telemetry

__all__ = ["SETTINGS", "delivering", "drained", "relay_over", "store_at"]

_DEFAULTS: Final = DestinationSettings()
SETTINGS: Final[dict[str, object]] = {"batch": _DEFAULTS.batch, "window": _DEFAULTS.window}
"""What every relay here runs with: the defaults."""


def store_at(names: Names) -> PostgresStore:
    return PostgresStore(URL, schema=names.schema)


def relay_over(
    store: Store, *, telemetry: Telemetry | None = None, batch: int = _DEFAULTS.batch, **transports: Transport
) -> Relay:
    """A relay with these destinations and default settings. It is silent unless told otherwise."""
    destinations = [
        Destination(lambda transport=transport: transport, DestinationSettings(name=name, batch=batch))  # type: ignore[misc]
        for name, transport in transports.items()
    ]
    return Relay(store, destinations, telemetry=telemetry or Telemetry())


async def drained(
    store: Store, *, messages: int, telemetry: Telemetry | None = None, batch: int = _DEFAULTS.batch
) -> float:
    """Deliver everything with one relay. Counts from its start to its graceful end, with all of it settled."""
    tally = Tally(messages)
    started = time.perf_counter()
    async with relay_over(store, telemetry=telemetry, batch=batch, default=NoOp(tally)):
        await tally.rate()
    return messages / (time.perf_counter() - started)


async def delivering(names: Names, *, messages: int) -> float:
    """The pace at which a relay, once it delivers, delivers that many of what waits."""
    tally = Tally(messages)
    async with relay_over(store_at(names), default=NoOp(tally)):
        return await tally.rate()
