"""The programs that die."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
import uvicorn

import pillarbox.brokers.http.transport
import pillarbox.brokers.nats
import pillarbox.brokers.rabbitmq  # noqa: F401 - so that no child has to import it
from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.brokers.http import HttpReceiver
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.contracts.receiver import Receiver
from pillarbox.contracts.transport import Transport
from pillarbox.message import Names
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import parse_store_url
from proof.chain.broken import BROKEN
from proof.chain.kill_points import STEPS, make_app_killable, make_handler_killable, wire
from proof.chain.services import insert
from proof.databases import BACKENDS
from proof.kill_points import KillableTransport, KillPoint, Once, Trap, make_killable
from proof.messages import DESTINATION, TYPES, Parcel, outbox
from proof.processes import serve_forks

__all__ = ["ConsumerOrder", "Order", "RelayOrder"]


class _Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    backend: str
    """Of the crash matrix: `postgres` or `sqlite`."""
    store: str
    schema: str | None
    trap: Trap | None = None
    """Where it dies."""


class RelayOrder(_Order, frozen=True, kw_only=True):
    """For a relay."""

    to: str
    """The transport's URL."""


class ConsumerOrder(_Order, frozen=True, kw_only=True):
    """For a consumer."""

    name: str
    url: str | None = None
    """What its receiver reads. None: it is sent requests."""
    port: int = 0
    """Where it is sent them."""
    onward: bool
    """It publishes what it handles."""
    broken: str | None = None
    """A mistake to make."""


Order = RelayOrder | ConsumerOrder


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
    mine = KillPoint(order.trap)
    BACKENDS[order.backend].wire(mine)

    def transport() -> Transport:
        nowhere = Path(os.devnull)
        return KillableTransport(transport_from_url(order.to), mine, arrivals=nowhere, turnstile=Once(None))

    settings = DestinationSettings(
        name=DESTINATION, batch=10, window=40, send_timeout=timedelta(seconds=10),
        retry=RetryPolicy(attempts=None, first=timedelta(milliseconds=200), longest=timedelta(seconds=1)),
    )  # fmt: skip
    relay = Relay(
        make_killable(open_store(order.store, names=Names(order.schema)), mine),
        [Destination(transport, settings)],
        settings=RelaySettings(
            service="chain", lease=_LEASE, stale_after=_LEASE, watch_interval=timedelta(milliseconds=50),
            poll_interval=timedelta(milliseconds=100), lone_cap=_ENOUGH,
        ),
    )  # fmt: skip
    await relay.run()


_SETTINGS: Final = ConsumerSettings(concurrency=4, prefetch=40, deaths=1_000_000)
"""Consumers die here by the dozen, and no message is to blame for it."""


def run_consumer(order: ConsumerOrder) -> None:
    """Handle until dead."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_consumer_run(order))


async def _consumer_run(order: ConsumerOrder) -> None:
    mine = KillPoint(order.trap, step=None if order.trap is None else STEPS[order.trap.point])
    BACKENDS[order.backend].wire(mine)
    if order.broken is not None:
        BROKEN[order.broken].plant()
    wire(mine)
    receiver: Receiver = HttpReceiver() if order.url is None else receiver_from_url(order.url)
    async with _database(order) as database:
        consumer = Consumer(
            order.name, receiver=receiver, database=database, schema=order.schema, settings=_SETTINGS, types=TYPES
        )
        consumer.on(Parcel)(make_handler_killable(_handler(order), mine))
        if isinstance(receiver, HttpReceiver):
            async with consumer:
                await _serve(make_app_killable(receiver.app, mine), order.port)
        else:
            await consumer.run()


@asynccontextmanager
async def _database(order: ConsumerOrder) -> AsyncIterator[object]:
    if order.backend == "sqlite":
        yield Path(parse_store_url(order.store).path)
        return
    async with asyncpg.create_pool(
        order.store, connection_class=asyncpg.Connection, min_size=1, max_size=_SETTINGS.concurrency + 2,
        server_settings={"search_path": order.schema or "public"},
    ) as pool:  # fmt: skip
        yield pool


def _handler(order: ConsumerOrder) -> Callable[..., Any]:
    """What a service does: one row of its own, and one message that tells of it."""
    onward = outbox(Names(order.schema)) if order.onward else None

    def on_sqlite(parcel: Parcel, tx: sqlite3.Connection) -> None:
        tx.execute(insert("?"), (parcel.subject, parcel.key, parcel.number))
        if onward is not None:
            onward.publish(tx, parcel)

    async def on_postgres(parcel: Parcel, tx: asyncpg.Connection[Any]) -> None:
        await tx.execute(insert("$"), parcel.subject, parcel.key, parcel.number)
        if onward is not None:
            await onward.publish(tx, parcel)

    return on_sqlite if order.backend == "sqlite" else on_postgres


async def _serve(app: Callable[..., Any], port: int) -> None:
    """At a port that the chain has reserved: see `proof.chain.lines`."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


def _carry_out(line: bytes) -> None:
    match msgspec.json.decode(line, type=Order):
        case RelayOrder() as order:
            main(order)
        case ConsumerOrder() as order:
            run_consumer(order)


if __name__ == "__main__":
    serve_forks(_carry_out)
