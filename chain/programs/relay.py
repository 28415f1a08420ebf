"""The real relay, mined as in the crash matrix."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from chain.orders import RelayOrder
from crash.backends import BACKENDS
from crash.mine import Mine
from crash.mined import MinedTransport, Turnstile, mined_store
from crash.parcels import DESTINATION
from pillarbox.names import Names
from pillarbox.protocols import Transport
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.opening import open_store
from pillarbox.transports.opening import transport_from_url

__all__ = ["main"]

_LEASE: Final = timedelta(seconds=1)
_PAUSE: Final = timedelta(milliseconds=200)
_ENOUGH: Final = 1_000_000
"""Relays die here by the dozen, and no message is to blame for it."""


def main(order: RelayOrder) -> None:
    """Deliver until dead."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    # A consumer that died is back in a moment, and waiting for it is not what is looked at here.
    Breaker.__init__.__kwdefaults__ = {"first": _PAUSE, "longest": _PAUSE}
    asyncio.run(_run(order))


async def _run(order: RelayOrder) -> None:
    mine = Mine(order.trap)
    BACKENDS[order.backend].wire(mine)

    def transport() -> Transport:
        nowhere = Path(os.devnull)
        return MinedTransport(transport_from_url(order.to), mine, arrivals=nowhere, turnstile=Turnstile(None))

    settings = DestinationSettings(
        name=DESTINATION, batch=10, window=40, send_timeout=timedelta(seconds=10),
        retry=RetryPolicy(attempts=None, first=timedelta(milliseconds=200), longest=timedelta(seconds=1)),
    )  # fmt: skip
    relay = Relay(
        mined_store(open_store(order.store, names=Names(order.schema)), mine),
        [Destination(transport, settings)],
        settings=RelaySettings(
            service="chain", lease=_LEASE, stale_after=_LEASE, watch_interval=timedelta(milliseconds=50),
            poll_interval=timedelta(milliseconds=100), lone_cap=_ENOUGH,
        ),
    )  # fmt: skip
    await relay.run()
