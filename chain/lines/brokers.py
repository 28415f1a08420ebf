"""PostgreSQL, RabbitMQ, PostgreSQL, NATS, PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import urlencode

import aiormq
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from chain.effects import make_table
from chain.lines.line import Line
from chain.orders import ConsumerOrder, RelayOrder
from crash.backends import Place
from crash.backends.postgres import in_database
from crash.backends.unserved import Unserved
from tests.nats_server import NatsServer
from tests.postgres_server import PostgresServer, scratch_database
from tests.rabbitmq_server import RabbitmqServer
from tests.servers import Server, found

__all__ = ["line"]

_ACK_WAIT: Final = 1.0
"""Seconds after which NATS delivers again what a dead consumer had."""
_DURABLE: Final = "c"


@contextmanager
def line(folder: Path, *, database: str | None = None) -> Iterator[Line]:
    """Three databases, a queue and a stream of its own. `Unserved` where a server is missing.

    With the URL of a `database`, three schemas of it instead: removing those does not wait for the disk.
    """
    name = f"pillarbox-chain-{token_hex(6)}"
    with ExitStack() as stack:
        rabbitmq, nats_url = (stack.enter_context(_found(server)) for server in (RabbitmqServer(), NatsServer()))
        postgres = None if database is not None else stack.enter_context(_found(PostgresServer()))
        a, b, c = (stack.enter_context(_place(postgres, database, folder)) for _ in range(3))
        stack.enter_context(_made(rabbitmq, name, make=_queue, remove=_no_queue))
        stack.enter_context(_made(nats_url, name, make=_stream, remove=_no_stream))
        for place in (b, c):
            make_table(place, backend="postgres")
        yield Line(a=a, b=b, c=c, roles=_roles(a, b, c, rabbitmq=rabbitmq, nats_url=nats_url, name=name))


def _roles(a: Place, b: Place, c: Place, *, rabbitmq: str, nats_url: str, name: str) -> dict[str, Any]:
    queue = urlencode({"queue": name, "prefetch": 40})
    durable = urlencode({"stream": name, "durable": _DURABLE})
    exchange, subject = urlencode({"exchange": name}), urlencode({"subject": f"{name}.{{topic}}", "stream": name})
    return {
        "relay A": RelayOrder(**_at(a), to=f"{rabbitmq}?{exchange}"),
        "consumer B": ConsumerOrder(**_at(b), name="b", url=f"{rabbitmq}?{queue}", onward=True),
        "relay B": RelayOrder(**_at(b), to=f"{nats_url}?{subject}"),
        "consumer C": ConsumerOrder(**_at(c), name="c", url=f"{nats_url}?{durable}", onward=False),
    }


def _at(place: Place) -> dict[str, Any]:
    return {"backend": "postgres", "store": place.url(), "schema": place.names.schema}


@contextmanager
def _found(server: Server) -> Iterator[str]:
    """As the tests find it; there it is told as a failed or skipped test."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(found(server, environ={**os.environ, "CI": "true"}))
        except pytest.fail.Exception as error:
            raise Unserved(str(error.msg)) from None
        yield url


@contextmanager
def _place(server: str | None, database: str | None, folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        url = database or stack.enter_context(scratch_database(str(server)))
        yield stack.enter_context(in_database(url)(folder))


Act = Callable[[str, str], Coroutine[Any, Any, None]]


@contextmanager
def _made(url: str, name: str, *, make: Act, remove: Act) -> Iterator[None]:
    asyncio.run(make(url, name))
    try:
        yield
    finally:
        asyncio.run(remove(url, name))


async def _queue(url: str, name: str) -> None:
    """One consumer at a time: what a dead one had is back in its place before the next one gets anything."""
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        await channel.exchange_declare(name, exchange_type="topic", durable=True)
        arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        await channel.queue_declare(name, durable=True, arguments=arguments)
        await channel.queue_bind(name, name, "#")
    finally:
        await connection.close()


async def _no_queue(url: str, name: str) -> None:
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        await channel.queue_delete(name)
        await channel.exchange_delete(name)
    finally:
        await connection.close()


async def _stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        await js.add_consumer(
            name, ConsumerConfig(durable_name=_DURABLE, ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT)
        )
    finally:
        await client.close()


async def _no_stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    try:
        await client.jetstream().delete_stream(name)
    finally:
        await client.close()
