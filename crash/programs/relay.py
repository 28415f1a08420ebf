"""The real relay, mined. SIGTERM stops it gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from crash.backends import BACKENDS
from crash.mine import Mine
from crash.mined import MinedTransport, Turnstile, mined_store
from crash.parcels import DESTINATION, GRAVEYARD
from crash.programs.orders import RelayOrder
from pillarbox.message import Message
from pillarbox.names import Names
from pillarbox.protocols import Transport
from pillarbox.relay.janitor import Archive
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings, Retention
from pillarbox.retry import RetryPolicy
from pillarbox.stores.opening import open_store
from pillarbox.transports.opening import transport_from_url

__all__ = ["main"]


def main(order: RelayOrder) -> None:
    """Deliver until stopped, or dead."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_run(order))


async def _run(order: RelayOrder) -> None:
    mine = Mine(order.trap)
    BACKENDS[order.backend].wire(mine)
    relay = Relay(
        mined_store(open_store(order.store, names=Names(order.schema)), mine),
        _destinations(order, mine),
        settings=_settings(order),
        archive=None if order.archive is None else _archive(Path(order.archive)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def _destinations(order: RelayOrder, mine: Mine) -> list[Destination]:
    turnstile = Turnstile(order.through)

    def transport(place: str) -> Transport:
        to = transport_from_url(f"{order.to}/{place}?allow_private=true&timeout=5s")
        return MinedTransport(to, mine, arrivals=Path(order.arrivals), turnstile=turnstile)

    settings = DestinationSettings(
        name=DESTINATION, batch=order.batch, window=order.window, after_failure=order.after_failure,
        send_timeout=timedelta(seconds=5), retry=RetryPolicy(attempts=4, first=timedelta(milliseconds=200)),
        dead_letter=GRAVEYARD if order.forwards else None,
    )  # fmt: skip
    destinations = [Destination(lambda: transport(DESTINATION), settings)]
    if order.forwards:
        destinations.append(Destination(lambda: transport(GRAVEYARD), DestinationSettings(name=GRAVEYARD)))
    return destinations


def _settings(order: RelayOrder) -> RelaySettings:
    lease = timedelta(seconds=order.lease)
    cleaning = Retention(delivered=timedelta(0), every=timedelta(milliseconds=200), batch=5)
    return RelaySettings(
        service="crash", lease=lease, stale_after=lease, watch_interval=timedelta(milliseconds=50),
        poll_interval=timedelta(milliseconds=100), lone_cap=order.lone_cap,
        retention=cleaning if order.purges else Retention(),
    )  # fmt: skip


def _archive(path: Path) -> Archive:
    async def archive(messages: Sequence[Message]) -> None:
        lines = "".join(f"{message.subject}\n" for message in messages)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, lines.encode())
        finally:
            os.close(file)

    return archive
