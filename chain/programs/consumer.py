"""The real consumer, mined: one effect for each parcel, and in the middle of the chain the parcel published again."""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvicorn

from chain.broken import BROKEN
from chain.effects import insert
from chain.mined import mined_app, mined_handler, wire
from chain.orders import ConsumerOrder
from chain.points import STEPS
from crash.backends import BACKENDS
from crash.mine import Mine
from crash.parcels import TYPES, Parcel, outbox
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.names import Names
from pillarbox.protocols import Receiver
from pillarbox.receivers.http import HttpReceiver
from pillarbox.receivers.opening import receiver_from_url
from pillarbox.stores.urls import store_url

__all__ = ["main"]

_SETTINGS: Final = ConsumerSettings(concurrency=4, prefetch=40, deaths=1_000_000)
"""Consumers die here by the dozen, and no message is to blame for it."""


def main(order: ConsumerOrder) -> None:
    """Handle until dead."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_run(order))


async def _run(order: ConsumerOrder) -> None:
    mine = Mine(order.trap, step=None if order.trap is None else STEPS[order.trap.point])
    BACKENDS[order.backend].wire(mine)
    if order.broken is not None:
        BROKEN[order.broken].plant()
    wire(mine)
    receiver: Receiver = HttpReceiver() if order.url is None else receiver_from_url(order.url)
    async with _database(order) as database:
        consumer = Consumer(
            order.name, receiver=receiver, database=database, schema=order.schema, settings=_SETTINGS, types=TYPES
        )
        consumer.on(Parcel)(mined_handler(_handler(order), mine))
        if isinstance(receiver, HttpReceiver):
            async with consumer:
                await _serve(mined_app(receiver.app, mine), order.port)
        else:
            await consumer.run()


@asynccontextmanager
async def _database(order: ConsumerOrder) -> AsyncIterator[object]:
    if order.backend == "sqlite":
        yield Path(store_url(order.store).path)
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
    """At a port that the chain has reserved: see `chain.lines.http`."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])
