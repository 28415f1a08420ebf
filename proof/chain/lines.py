"""The two ways from A to C. One more is one file with the shape of `http`, and one entry here."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode

import aiormq
import msgspec
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from proof.chain.programs import ConsumerOrder, Order, RelayOrder
from proof.chain.services import make_table
from proof.databases import Place, Unserved, in_database, in_sqlite
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresServer, scratch_database
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.servers import Server, found

__all__ = ["LINES", "Line"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way from A to C."""

    a: Place
    b: Place
    c: Place
    roles: Mapping[str, Order]
    """Who works, by the name that people read: `relay A`, `consumer B`, `relay B`, `consumer C`."""


@contextmanager
def line(folder: Path) -> Iterator[Line]:
    """Three files, and two ports of its own."""
    with ExitStack() as stack:
        make = stack.enter_context(in_sqlite())
        a, b, c = (stack.enter_context(make(_made(folder / name))) for name in "abc")
        at_b, at_c = (stack.enter_context(_reserved()) for _ in range(2))
        for place in (b, c):
            make_table(place, backend="sqlite")
        yield Line(a=a, b=b, c=c, roles=_roles(a, b, c, at_b=at_b, at_c=at_c))


def _roles(a: Place, b: Place, c: Place, *, at_b: int, at_c: int) -> dict[str, Any]:
    return {
        "relay A": RelayOrder(**_at(a), to=_url(at_b)),
        "consumer B": ConsumerOrder(**_at(b), name="b", port=at_b, onward=True),
        "relay B": RelayOrder(**_at(b), to=_url(at_c)),
        "consumer C": ConsumerOrder(**_at(c), name="c", port=at_c, onward=False),
    }


def _at(place: Place) -> dict[str, Any]:
    return {"backend": "sqlite", "store": place.url(), "schema": None}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/?allow_private=true&timeout=5s"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _reserved() -> Iterator[int]:
    """A port that nobody else is given while its consumer is dead: bound, and never listened at."""
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holding.bind(("127.0.0.1", 0))
        yield holding.getsockname()[1]


_ACK_WAIT: Final = 1.0
"""Seconds after which NATS delivers again what a dead consumer had."""
_DURABLE: Final = "c"


@contextmanager
def build_broker_line(folder: Path, *, database: str | None = None) -> Iterator[Line]:
    """Three databases, a queue and a stream of its own. `Unserved` where a server is missing.

    With the URL of a `database`, three schemas of it instead: removing those does not wait for the disk.
    """
    name = f"pillarbox-chain-{token_hex(6)}"
    with ExitStack() as stack:
        rabbitmq, nats_url = (stack.enter_context(_found(server)) for server in (RabbitmqServer(), NatsServer()))
        postgres = None if database is not None else stack.enter_context(_found(PostgresServer()))
        a, b, c = (stack.enter_context(_place(postgres, database, folder)) for _ in range(3))
        stack.enter_context(_make_broker_line(rabbitmq, name, make=_queue, remove=_no_queue))
        stack.enter_context(_make_broker_line(nats_url, name, make=_stream, remove=_no_stream))
        for place in (b, c):
            make_table(place, backend="postgres")
        yield Line(a=a, b=b, c=c, roles=_broker_roles(a, b, c, rabbitmq=rabbitmq, nats_url=nats_url, name=name))


def _broker_roles(a: Place, b: Place, c: Place, *, rabbitmq: str, nats_url: str, name: str) -> dict[str, Any]:
    queue = urlencode({"queue": name, "prefetch": 40})
    durable = urlencode({"stream": name, "durable": _DURABLE})
    exchange, subject = urlencode({"exchange": name}), urlencode({"subject": f"{name}.{{topic}}", "stream": name})
    return {
        "relay A": RelayOrder(**_broker_at(a), to=f"{rabbitmq}?{exchange}"),
        "consumer B": ConsumerOrder(**_broker_at(b), name="b", url=f"{rabbitmq}?{queue}", onward=True),
        "relay B": RelayOrder(**_broker_at(b), to=f"{nats_url}?{subject}"),
        "consumer C": ConsumerOrder(**_broker_at(c), name="c", url=f"{nats_url}?{durable}", onward=False),
    }


def _broker_at(place: Place) -> dict[str, Any]:
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
def _make_broker_line(url: str, name: str, *, make: Act, remove: Act) -> Iterator[None]:
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


LINES: Final[Mapping[str, Callable[[Path], AbstractContextManager[Line]]]] = MappingProxyType(
    {"brokers": build_broker_line, "http": line}
)
"""By the name that people type. The folder is for files; all else that a line makes is removed at its end."""
