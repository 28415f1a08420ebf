"""What a dead consumer had comes before what is newer, although NATS delivers it later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.nats import NatsReceiver
from pillarbox.brokers.nats import receiver as receiver_module
from pillarbox.brokers.nats.streams import ensure_consumer
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import take
from tests.support.nats_server import NatsServer, Stream, stream_at
from tests.support.servers import found


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


@pytest.fixture
async def stream(nats_url: str) -> AsyncIterator[Stream]:
    async with stream_at(nats_url) as stream:
        yield stream


def receiver_at(url: str, stream: Stream) -> NatsReceiver:
    options = {"stream": stream.name, "durable": "billing", "declare": True, "ack_wait": "4s"}
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, NatsReceiver)
    return receiver


async def put(stream: Stream, *numbers: int) -> None:
    for number in numbers:
        await stream.put(f"{stream.name}.{number}")


async def test_what_a_dead_consumer_had_comes_before_what_is_newer(nats_url: str, stream: Stream) -> None:
    await put(stream, *range(1, 6))
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        dead = receiver_at(f"nats://{proxy.host}:{proxy.port}", stream)
        await dead.open()
        await dead.acknowledge((await take(dead, 5))[0])
        await dead.ping()  # the acknowledgement was before it
        await proxy.down()
        await put(stream, *range(6, 11))
        other = receiver_at(nats_url, stream)
        await other.open()
        try:
            came: dict[str, None] = {}  # a busy machine may let one come again: the first time counts
            while len(came) < 9:
                came |= {received.fallback.topic: None for received in await other.receive(limit=2)}
        finally:
            await other.close()
            await dead.close()
    assert list(came) == [f"{stream.name}.{number}" for number in range(2, 11)]


async def test_what_comes_while_the_server_is_asked_is_not_taken_for_what_was_out(
    nats_url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that one is out, and one is in hand: not the same one."""
    await put(stream, 1)
    async with FaultProxy("127.0.0.1", int(nats_url.rpartition(":")[2])) as proxy:
        dead = receiver_at(f"nats://{proxy.host}:{proxy.port}", stream)
        await dead.open()
        await take(dead, 1)
        await proxy.down()
        other = receiver_at(nats_url, stream)
        await other.open()
        made = other._subscription.current
        assert made is not None
        asked = 0

        async def answered_late(*given: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            answer = await ensure_consumer(*given, **options)
            if asked == 2:  # there is a request for messages since the first time
                await put(stream, 2)
                async with asyncio.timeout(40):
                    while not made._waiting:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            return answer

        monkeypatch.setattr(receiver_module, "ensure_consumer", answered_late)
        try:
            came: dict[str, None] = {}
            while len(came) < 2:
                came |= {received.fallback.topic: None for received in await other.receive(limit=10)}
        finally:
            await other.close()
            await dead.close()
    assert list(came) == [f"{stream.name}.1", f"{stream.name}.2"]
