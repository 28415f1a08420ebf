"""The two lines from A to C: over HTTP, and over RabbitMQ and NATS."""

from __future__ import annotations

import asyncio
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
from nats.js.api import AckPolicy, ConsumerConfig

from proof.chain.programs import ConsumerSpec, RelaySpec
from proof.chain.services import create_effect_table
from proof.databases import Database, find_server, find_sqlite, make_schema_factory
from proof.processes import ProgramSpec
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import PostgresServer, scratch_database
from tests.support.rabbitmq_server import RabbitmqServer

__all__ = ["LINES", "Line"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way from A to C."""

    a: Database
    b: Database
    c: Database
    roles: Mapping[str, ProgramSpec]
    """The programs, by the name that people read: `relay A`, `consumer B`, `relay B`, `consumer C`."""


@contextmanager
def build_http_line(folder: Path) -> Iterator[Line]:
    """Build a line with three SQLite files and two ports of its own."""
    with ExitStack() as stack:
        create = stack.enter_context(find_sqlite())
        a, b, c = (stack.enter_context(create(_make_folder(folder / name))) for name in "abc")
        at_b, at_c = (stack.enter_context(_reserve_port()) for _ in range(2))
        for service in (b, c):
            create_effect_table(service, backend="sqlite")
        yield Line(a=a, b=b, c=c, roles=_build_http_roles(a, b, c, at_b=at_b, at_c=at_c))


def _build_http_roles(a: Database, b: Database, c: Database, *, at_b: int, at_c: int) -> dict[str, Any]:
    return {
        "relay A": RelaySpec(**_locate("sqlite", a), to=_format_url(at_b)),
        "consumer B": ConsumerSpec(**_locate("sqlite", b), name="b", port=at_b, publishes=True),
        "relay B": RelaySpec(**_locate("sqlite", b), to=_format_url(at_c)),
        "consumer C": ConsumerSpec(**_locate("sqlite", c), name="c", port=at_c, publishes=False),
    }


def _locate(backend: str, database: Database) -> dict[str, Any]:
    return {"backend": backend, "store": database.url(), "schema": database.names.schema}


def _format_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/?allow_private=true&timeout=5s"


def _make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _reserve_port() -> Iterator[int]:
    """Reserve a port: bound and never listened at, so that no one else gets it while its consumer is dead."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


_ACK_WAIT: Final = 1.0
"""Seconds after which NATS delivers again what a dead consumer had."""
_DURABLE: Final = "c"


@contextmanager
def build_broker_line(folder: Path, *, database: str | None = None) -> Iterator[Line]:
    """Build a line with three databases, a queue and a stream of its own; `ServerMissing` if there is no server.

    With the URL of a `database`, three schemas of it instead: removing those does not wait for the disk.
    """
    name = f"pillarbox-chain-{token_hex(6)}"
    with ExitStack() as stack:
        rabbitmq, nats_url = (stack.enter_context(find_server(server)) for server in (RabbitmqServer(), NatsServer()))
        postgres = None if database is not None else stack.enter_context(find_server(PostgresServer()))
        a, b, c = (stack.enter_context(_create_database(postgres, database, folder)) for _ in range(3))
        stack.enter_context(_declare(rabbitmq, name, create=_create_queue, delete=_delete_queue))
        stack.enter_context(_declare(nats_url, name, create=_create_stream, delete=_delete_stream))
        for service in (b, c):
            create_effect_table(service, backend="postgres")
        yield Line(a=a, b=b, c=c, roles=_build_broker_roles(a, b, c, rabbitmq=rabbitmq, nats_url=nats_url, name=name))


def _build_broker_roles(
    a: Database, b: Database, c: Database, *, rabbitmq: str, nats_url: str, name: str
) -> dict[str, Any]:
    queue = urlencode({"queue": name, "prefetch": 40})
    durable = urlencode({"stream": name, "durable": _DURABLE})
    exchange, subject = urlencode({"exchange": name}), urlencode({"subject": f"{name}.{{topic}}", "stream": name})
    return {
        "relay A": RelaySpec(**_locate("postgres", a), to=f"{rabbitmq}?{exchange}"),
        "consumer B": ConsumerSpec(**_locate("postgres", b), name="b", url=f"{rabbitmq}?{queue}", publishes=True),
        "relay B": RelaySpec(**_locate("postgres", b), to=f"{nats_url}?{subject}"),
        "consumer C": ConsumerSpec(**_locate("postgres", c), name="c", url=f"{nats_url}?{durable}", publishes=False),
    }


@contextmanager
def _create_database(server: str | None, database: str | None, folder: Path) -> Iterator[Database]:
    with ExitStack() as stack:
        url = database or stack.enter_context(scratch_database(str(server)))
        yield stack.enter_context(make_schema_factory(url)(folder))


Declare = Callable[[str, str], Coroutine[Any, Any, None]]


@contextmanager
def _declare(url: str, name: str, *, create: Declare, delete: Declare) -> Iterator[None]:
    asyncio.run(create(url, name))
    try:
        yield
    finally:
        asyncio.run(delete(url, name))


async def _create_queue(url: str, name: str) -> None:
    """Create a queue for one consumer at a time: what a dead one had is back in its place before the next one reads."""
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        await channel.exchange_declare(name, exchange_type="topic", durable=True)
        arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        await channel.queue_declare(name, durable=True, arguments=arguments)
        await channel.queue_bind(name, name, "#")
    finally:
        await connection.close()


async def _delete_queue(url: str, name: str) -> None:
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        await channel.queue_delete(name)
        await channel.exchange_delete(name)
    finally:
        await connection.close()


async def _create_stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        await js.add_consumer(
            name, ConsumerConfig(durable_name=_DURABLE, ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT)
        )
    finally:
        await client.close()


async def _delete_stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    try:
        await client.jetstream().delete_stream(name)
    finally:
        await client.close()


LINES: Final[Mapping[str, Callable[[Path], AbstractContextManager[Line]]]] = MappingProxyType(
    {"brokers": build_broker_line, "http": build_http_line}
)
"""By the name that `--lines` takes. The folder is for files; all else that a line makes is removed at its end."""
