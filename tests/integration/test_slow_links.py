"""Large messages on a slow link take longer than every timeout, and are sent once all the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aio_pika
import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.http_endpoint import Endpoint
from tests.support.nats_server import NatsServer, stream_at
from tests.support.rabbitmq_topology import Topology
from tests.support.relay_behaviour.scene import sqlite_scene, until
from tests.support.servers import found

_COUNT: Final = 12
_SIZE: Final = 1_000_000
_RATE: Final = 1_500_000
"""Bytes a second: all messages together take eight seconds."""
_TIMEOUT: Final = "3s"

Server = tuple[str, Mapping[str, object], Callable[[], Awaitable[int]]]
"""URL, options of the transport, and how to count what arrived."""


@asynccontextmanager
async def rabbitmq(url: str) -> AsyncIterator[Server]:
    async with Topology.declared(url) as topology:

        async def count() -> int:
            queue = await topology.channel.declare_queue(topology.queue, passive=True)
            assert isinstance(queue, aio_pika.abc.AbstractQueue)
            return queue.declaration_result.message_count or 0

        yield topology.url, {"exchange": "", "routing_key": topology.queue}, count


@asynccontextmanager
async def nats(url: str) -> AsyncIterator[Server]:
    async with stream_at(url) as stream:

        async def count() -> int:
            return (await stream.js.stream_info(stream.name)).state.messages

        yield url, {"subject": f"{stream.name}.large"}, count


@asynccontextmanager
async def http(_: str) -> AsyncIterator[Server]:
    endpoint = Endpoint()
    await endpoint.start()

    async def count() -> int:
        return len([arrival for arrival in endpoint.arrivals if len(arrival.body) >= _SIZE])

    # Few at a time: each connection hides some bytes in buffers, and the wait for a slot is no time of the endpoint.
    yield endpoint.url, {"allow_private": True, "concurrency": 4}, count
    await endpoint.stop()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Not async: looking for a server runs a loop of its own."""
    server = request.getfixturevalue("server")
    if server is rabbitmq:
        yield request.getfixturevalue("rabbitmq_url")
    elif server is nats:
        with found(NatsServer(), environ=os.environ) as found_url:
            yield found_url
    else:
        yield ""


@pytest.mark.parametrize("server", [rabbitmq, nats, http], ids=lambda server: server.__name__)
async def test_a_send_that_moves_is_not_ended(
    server: Callable[[str], AbstractAsyncContextManager[Server]], url: str, tmp_path: Path
) -> None:
    async with server(url) as (address, options, count), sqlite_scene(tmp_path / "shop.db") as scene:
        scene.payload_size = _SIZE
        await scene.put(*[(number, f"key-{number}") for number in range(_COUNT)])
        where = urlsplit(address)
        async with FaultProxy(where.hostname or "", where.port or 0, bytes_per_second=_RATE) as proxy:
            login = f"{where.username}:{where.password}@" if where.username else ""
            slow = where._replace(netloc=f"{login}{proxy.host}:{proxy.port}").geturl()
            destination = Destination(
                lambda: transport_from_url(slow, options={"timeout": _TIMEOUT, **options}),
                DestinationSettings(name="sink", send_timeout=timedelta(seconds=3)),
            )
            async with Relay(scene.open_store(), [destination]):
                await until(scene.is_drained)
        assert {(one.state, one.attempts) for one in await scene.find()} == {(State.DELIVERED, 0)}
        assert await count() == _COUNT
