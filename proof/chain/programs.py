"""The programs that the chain starts and kills: relays and consumers.

`python -m proof.chain.programs` is the fork server that starts them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
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
from proof.chain.kill_points import find_consumer_step, hook_consumer, make_app_killable, make_handler_killable
from proof.chain.services import format_insert
from proof.crash.steps import make_kill_switch
from proof.databases import BACKENDS
from proof.kill_points import KillableTransport, KillSwitch, make_store_killable
from proof.messages import DESTINATION, TYPES, NumberedEvent, build_outbox
from proof.processes import ProgramSpec, serve_forks

__all__ = ["MODULE", "ConsumerSpec", "RelaySpec"]

MODULE: Final = "proof.chain.programs"
"""The module of the fork server."""


class RelaySpec(ProgramSpec, frozen=True, kw_only=True):
    """Runs a relay until it dies."""

    to: str
    """The transport's URL."""


class ConsumerSpec(ProgramSpec, frozen=True, kw_only=True):
    """Runs a consumer until it dies."""

    name: str
    url: str | None = None
    """What its receiver reads. None: it receives HTTP requests."""
    port: int = 0
    """The port for them."""
    publishes: bool
    """Whether it publishes what it handles."""
    broken: str | None = None
    """The mistake that it makes."""


_LEASE: Final = timedelta(seconds=1)
_PAUSE: Final = timedelta(milliseconds=200)
_NO_LIMIT: Final = 1_000_000
"""Of deaths per message: processes are killed here by the dozen, and no message is the cause."""


def run_relay(spec: RelaySpec) -> None:
    """Deliver until it dies."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    # A consumer that died is back soon; long pauses of the breaker would only make the run longer.
    Breaker.__init__.__kwdefaults__ = {"first": _PAUSE, "longest": _PAUSE}
    asyncio.run(_run_relay(spec))


async def _run_relay(spec: RelaySpec) -> None:
    kill_switch = make_kill_switch(spec.kill)
    BACKENDS[spec.backend].hook(kill_switch)

    def open_transport() -> Transport:
        return KillableTransport(transport_from_url(spec.to), kill_switch)

    settings = DestinationSettings(
        name=DESTINATION, batch=10, window=40, send_timeout=timedelta(seconds=10),
        retry=RetryPolicy(attempts=None, first=timedelta(milliseconds=200), longest=timedelta(seconds=1)),
    )  # fmt: skip
    relay = Relay(
        make_store_killable(open_store(spec.store, names=Names(spec.schema)), kill_switch),
        [Destination(open_transport, settings)],
        settings=RelaySettings(
            service="chain", lease=_LEASE, stale_after=_LEASE, watch_interval=timedelta(milliseconds=50),
            poll_interval=timedelta(milliseconds=100), lone_cap=_NO_LIMIT,
        ),
    )  # fmt: skip
    await relay.run()


# No handler fails here, except by an outage, which must cost no attempt: so one attempt is enough.
_SETTINGS: Final = ConsumerSettings(
    concurrency=4, prefetch=40, deaths=_NO_LIMIT, retry=RetryPolicy(attempts=1), stop_timeout=timedelta(seconds=5)
)
_OUTAGES: Final = frozenset({6, 11})
"""Calls of a process's handler that lose the database in the middle of their transaction."""


def run_consumer(spec: ConsumerSpec) -> None:
    """Handle messages until it dies."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_run_consumer(spec))


async def _run_consumer(spec: ConsumerSpec) -> None:
    kill_switch = KillSwitch(spec.kill, find_consumer_step(spec.kill))
    BACKENDS[spec.backend].hook(kill_switch)
    if spec.broken is not None:
        BROKEN[spec.broken].apply()
    hook_consumer(kill_switch)
    receiver: Receiver = HttpReceiver() if spec.url is None else receiver_from_url(spec.url)
    async with _open_database(spec) as database:
        consumer = Consumer(
            spec.name, receiver=receiver, database=database, schema=spec.schema, settings=_SETTINGS, types=TYPES
        )
        consumer.on(NumberedEvent)(make_handler_killable(_make_handler(spec), kill_switch))
        if isinstance(receiver, HttpReceiver):
            async with consumer:
                await _serve(make_app_killable(receiver.app, kill_switch), spec.port)
        else:
            await consumer.run()


@asynccontextmanager
async def _open_database(spec: ConsumerSpec) -> AsyncIterator[object]:
    if spec.backend == "sqlite":
        yield Path(parse_store_url(spec.store).path)
        return
    async with asyncpg.create_pool(
        spec.store, connection_class=asyncpg.Connection, min_size=1, max_size=_SETTINGS.concurrency + 2,
        server_settings={"search_path": spec.schema or "public"},
    ) as pool:  # fmt: skip
        yield pool


def _make_handler(spec: ConsumerSpec) -> Callable[..., Any]:
    """Return the handler of a service: it writes one row, and publishes one message about it.

    Some of its calls lose the database. On PostgreSQL the server ends the connection.
    """
    outbox = build_outbox(Names(spec.schema)) if spec.publishes else None
    calls = count(1)

    def handle_in_sqlite(event: NumberedEvent, tx: sqlite3.Connection) -> None:
        tx.execute(format_insert("?"), (event.subject, event.key, event.number))
        if next(calls) in _OUTAGES:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        if outbox is not None:
            outbox.publish(tx, event)

    async def handle_in_postgres(event: NumberedEvent, tx: asyncpg.Connection[Any]) -> None:
        await tx.execute(format_insert("$"), event.subject, event.key, event.number)
        if next(calls) in _OUTAGES:
            await tx.execute("select pg_terminate_backend(pg_backend_pid())")
        if outbox is not None:
            await outbox.publish(tx, event)

    return handle_in_sqlite if spec.backend == "sqlite" else handle_in_postgres


async def _serve(app: Callable[..., Any], port: int) -> None:
    """Serve at a port that `proof.chain.lines` has reserved."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listener])


def _run_program(encoded: bytes) -> None:
    match msgspec.json.decode(encoded, type=RelaySpec | ConsumerSpec):
        case RelaySpec() as spec:
            run_relay(spec)
        case ConsumerSpec() as spec:
            run_consumer(spec)


if __name__ == "__main__":
    serve_forks(_run_program)
