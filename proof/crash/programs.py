"""The programs that the matrix starts: relays, writers and operators that die, and the consumer."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec

import pillarbox.brokers.http.transport  # noqa: F401 - so that no child has to import it
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message, Names
from pillarbox.relay.janitor import Archive
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings, Retention
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_store
from proof.crash.requests import OperatorOrder, Order, RelayOrder, WriterOrder, redrive_all_failed
from proof.crash.steps import Call
from proof.databases import BACKENDS, write
from proof.kill_points import KillableTransport, KillPoint, Once, make_killable
from proof.messages import DESTINATION, GRAVEYARD, parcel
from proof.processes import serve_forks

__all__ = ["main"]


def main(order: RelayOrder) -> None:
    """Deliver until stopped, or dead."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_run(order))


async def _run(order: RelayOrder) -> None:
    mine = KillPoint(order.trap)
    BACKENDS[order.backend].wire(mine)
    relay = Relay(
        make_killable(open_store(order.store, names=Names(order.schema)), mine),
        _destinations(order, mine),
        settings=_settings(order),
        archive=None if order.archive is None else _archive(Path(order.archive)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def _destinations(order: RelayOrder, mine: KillPoint) -> list[Destination]:
    turnstile = Once(order.through)

    def transport(place: str) -> Transport:
        to = transport_from_url(f"{order.to}/{place}?allow_private=true&timeout=5s")
        return KillableTransport(to, mine, arrivals=Path(order.arrivals), turnstile=turnstile)

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


def run_writer(order: WriterOrder) -> None:
    """Write until done, or dead."""
    mine = KillPoint(order.trap)
    with closing(BACKENDS[order.backend].reopened(order.store, order.schema)) as place:
        for transaction in range(order.transactions):
            first = 1 + transaction * order.parcels
            parcels = [parcel(order.key, number) for number in range(first, first + order.parcels)]
            write(place, parcels, reached=partial(mine.at, call=Call("write")))


def run_operator(order: OperatorOrder) -> None:
    """Act until done, or dead."""
    asyncio.run(_operator_run(order))


async def _operator_run(order: OperatorOrder) -> None:
    mine = KillPoint(order.trap)
    BACKENDS[order.backend].wire(mine)
    store = make_killable(open_store(order.store, names=Names(order.schema)), mine)
    await store.open()
    try:
        await redrive_all_failed(store, order.action, batch=order.batch)
    finally:
        await store.close()


def _carry_out(line: bytes) -> None:
    match msgspec.json.decode(line, type=Order):
        case RelayOrder() as order:
            main(order)
        case WriterOrder() as order:
            run_writer(order)
        case OperatorOrder() as order:
            run_operator(order)


if __name__ == "__main__":
    serve_forks(_carry_out)
