"""The SQS and SNS transports keep the contract, in both CloudEvents modes, against moto."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing

import pytest

from pillarbox.brokers.aws import decode
from pillarbox.brokers.factory import transport_from_url
from pillarbox.cloudevents import CloudEvent
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.aws_gateway import Gateway, No
from tests.support.aws_reader import REGION, AwsReader
from tests.support.moto_server import private_moto


@pytest.fixture(scope="module")
def reader() -> Iterator[AwsReader]:
    with closing(private_moto()) as moto, closing(AwsReader(moto.url)) as reader:
        yield reader


class AwsHarness(TransportHarness):
    """One queue, by itself or behind a topic. Between it and us stand a proxy that cuts and a gateway that refuses."""

    def __init__(
        self, proxy: FaultProxy, gateway: Gateway, reader: AwsReader, *, queue: str, transport: Transport
    ) -> None:
        self.transport = transport
        self._proxy = proxy
        self._gateway = gateway
        self._reader = reader
        self._queue = queue
        self._events: list[CloudEvent] = []

    async def received(self) -> Sequence[CloudEvent]:
        arrived = await asyncio.to_thread(self._reader.read, self._queue)
        self._events += [decode(one.body, one.attributes) for one in arrived]
        return list(self._events)

    async def refuse_next(self) -> None:
        self._gateway.refuses.append(No())

    async def reject_next(self, message: Message) -> Message:
        self._gateway.refuses.append(No(code="InvalidMessageContents", sender_fault=True))
        return message

    async def cut_next(self) -> None:
        self._proxy.cut_after(1)

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        self._proxy.heal()
        await self._proxy.up()

    async def hang(self) -> asyncio.Event:
        self._proxy.hang()
        self._proxy.requested.clear()
        return self._proxy.requested


@asynccontextmanager
async def _opened(reader: AwsReader, scheme: str, *, mode: str, suffix: str = "") -> AsyncIterator[AwsHarness]:
    name = reader.name(suffix)
    reader.queue(name)
    if scheme == "sns":
        reader.topic(name, queue=name)
    async with Gateway(reader.url) as gateway, FaultProxy("127.0.0.1", gateway.port) as proxy:
        option = {"sqs": "queue", "sns": "topic"}[scheme]
        transport = transport_from_url(
            f"{scheme}://key:secret@{REGION}",
            options={option: name, "mode": mode, "endpoint": f"http://{proxy.host}:{proxy.port}"},
        )
        await transport.open()
        try:
            yield AwsHarness(proxy, gateway, reader, queue=name, transport=transport)
        finally:
            await transport.close()


class TestSqsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, reader: AwsReader) -> AsyncIterator[AwsHarness]:
        async with _opened(reader, "sqs", mode="structured") as harness:
            yield harness


class TestBinaryFifoSqsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, reader: AwsReader) -> AsyncIterator[AwsHarness]:
        async with _opened(reader, "sqs", mode="binary", suffix=".fifo") as harness:
            yield harness


class TestSnsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, reader: AwsReader) -> AsyncIterator[AwsHarness]:
        async with _opened(reader, "sns", mode="structured") as harness:
            yield harness
