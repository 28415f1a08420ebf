"""Ways from producers to receivers of one group, over every broker and type of queue."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager, closing
from datetime import timedelta
from typing import Final

import aiohttp
import aiormq
import pytest
import redis.asyncio as plain

from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.brokers.http import HttpReceiver
from pillarbox.cloudevents import HTTP, to_binary
from pillarbox.contracts.receiver import Receiver
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message
from tests.support.kafka_cluster import KafkaCluster
from tests.support.nats_server import NatsServer, stream_at
from tests.support.redis_server import private_redis
from tests.support.servers import found
from tests.support.web_server import WebServer

__all__ = ["ALL_WAYS", "QUEUES", "Way", "open_way"]

QUEUES: Final = ("quorum", "classic", "single active", "nats", "redis", "kafka")
ALL_WAYS: Final = (*QUEUES, "http")


class Way:
    """From a transport to receivers of one group."""

    def __init__(
        self, name: str, url: str, *, sending: dict[str, object], receiving: dict[str, object], address: str
    ) -> None:
        self.name = name
        self.url = url
        self.address = address
        """Queue, stream or topic, as another producer names it."""
        self._sending = sending
        self._receiving = receiving

    def transport(self) -> Transport:
        return transport_from_url(self.url, options=self._sending)

    def receiver(self) -> Receiver:
        return receiver_from_url(self.url, options=self._receiving)

    async def send(self, messages: Sequence[Message], *, batch: int = 10_000) -> None:
        """Send messages, in batches, and have the broker acknowledge each."""
        transport = self.transport()
        await transport.open()
        try:
            for start in range(0, len(messages), batch):
                left = messages[start : start + batch]
                while left:  # a transport may leave the end of a run to the next send
                    outcomes = await transport.send(left)
                    assert all(outcome.delivered or outcome.unsent for outcome in outcomes)
                    assert outcomes[0].delivered
                    left = [one for one, outcome in zip(left, outcomes, strict=True) if outcome.unsent]
        finally:
            await transport.close()


class HttpWay(Way):
    """Requests to a web server. Each is answered when its message is handled."""

    def __init__(self, server: WebServer, receiver: HttpReceiver) -> None:
        super().__init__("http", server.url, sending={}, receiving={}, address="/hooks")
        self._receiver = receiver

    def receiver(self) -> Receiver:
        return self._receiver

    async def send(self, messages: Sequence[Message], *, batch: int = 10_000) -> None:
        """Send each message again and again until it is handled, all of them at once and none after another."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await asyncio.gather(*(self._send(client, message) for message in messages))

    async def _send(self, client: aiohttp.ClientSession, message: Message) -> None:
        headers, body = to_binary(message, binding=HTTP)
        while True:
            async with client.post(f"{self.url}{self.address}", data=body, headers=headers) as response:
                if response.ok:
                    return
            await asyncio.sleep(0.05)


def open_way(name: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Way]:
    """Open the way over a broker, or over a type of queue of RabbitMQ."""
    match name:
        case "nats":
            return _nats()
        case "redis":
            return _redis()
        case "kafka":
            return _kafka()
        case "http":
            return _http()
    return _rabbitmq(request, name)


@asynccontextmanager
async def _rabbitmq(request: pytest.FixtureRequest, queue: str) -> AsyncIterator[Way]:
    url: str = request.getfixturevalue("rabbitmq_url")
    name = f"pillarbox-{secrets.token_hex(6)}"
    receiving: dict[str, object] = {"queue": name, "exchange": name, "declare": True}
    receiving |= {"single_active": True} if queue == "single active" else {"queue_type": queue}
    receiver = receiver_from_url(url, options=receiving)
    await receiver.open()  # so that the queue is there before the first message
    await receiver.close()
    try:
        yield Way(queue, url, sending={"exchange": name}, receiving=receiving, address=name)
    finally:
        connection = await aiormq.connect(url)
        channel = await connection.channel()
        await channel.queue_delete(name)
        await channel.exchange_delete(name)
        await connection.close()


@asynccontextmanager
async def _nats() -> AsyncIterator[Way]:
    with ExitStack() as closing_server:
        # In a thread, because it looks for the server with a loop of its own.
        url = await asyncio.to_thread(closing_server.enter_context, found(NatsServer(), environ=os.environ))
        async with stream_at(url) as stream:
            receiving: dict[str, object] = {"stream": stream.name, "durable": "billing", "declare": True}
            sending: dict[str, object] = {"subject": f"{stream.name}.{{topic}}"}
            yield Way("nats", url, sending=sending, receiving=receiving, address=stream.name)


@asynccontextmanager
async def _redis() -> AsyncIterator[Way]:
    with closing(private_redis("--save", "")) as server:
        async with aclosing(plain.Redis(port=server.port, protocol=2)) as client:
            await client.flushall()
        receiving: dict[str, object] = {"stream": "orders", "group": "billing", "declare": True}
        yield Way("redis", server.url, sending={"key": "orders"}, receiving=receiving, address="orders")


@asynccontextmanager
async def _kafka() -> AsyncIterator[Way]:
    with KafkaCluster() as cluster:
        cluster.create("orders", partitions=3)
        receiving: dict[str, object] = {"topics": "orders", "group": "billing", "session_timeout": "4s"}
        yield Way("kafka", cluster.url, sending={"topic": "orders"}, receiving=receiving, address="orders")


@asynccontextmanager
async def _http() -> AsyncIterator[Way]:
    receiver = HttpReceiver(waiting=20_000, timeout=timedelta(seconds=10), repeats="remembered")
    server = WebServer(receiver.app)
    await server.start()
    try:
        yield HttpWay(server, receiver)
    finally:
        await server.stop()
