"""SQS and SNS under every fault. moto plays AWS, with a front door of ours that can be shut."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Final

import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.aws_gateway import Gateway, No
from tests.support.aws_reader import REGION, AwsReader
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.moto_server import private_moto

__all__ = ["SENDS", "Sns", "Sqs", "find_reader"]

SENDS: Final = {"sqs": "SendMessageBatch", "sns": "PublishBatch"}
"""Scheme to the operation that sends."""
_TOO_LARGE: Final = {"sqs": 1_100_000, "sns": 300_000}


@cache
def find_reader() -> AwsReader:
    """One moto for all faults: it takes seconds to start."""
    moto = private_moto()
    atexit.register(moto.close)
    return AwsReader(moto.url)


class RunningAws(RunningBroker):
    """A queue, by itself or behind a topic of the same name."""

    def __init__(self, scheme: str, reader: AwsReader, gateway: Gateway, proxy: FaultProxy, *, name: str) -> None:
        self.topic = name
        self.proxy = proxy
        self._scheme = scheme
        self._reader = reader
        self._gateway = gateway

    def make_transport(self) -> Transport:
        endpoint = f"http://{self.proxy.host}:{self.proxy.port}"
        return transport_from_url(
            f"{self._scheme}://key:secret@{REGION}", options={"endpoint": endpoint, "mode": "binary", "timeout": "3s"}
        )

    async def read_received(self) -> Sequence[Arrival]:
        arrived = await asyncio.to_thread(self._reader.read, self.topic)
        return [parse_arrival(one.body, one.attributes["ce_id"]) for one in arrived]

    async def stop(self) -> None:
        """The front door. What is stored stays in moto."""
        await self._gateway.stop()

    async def start(self) -> None:
        await self._gateway.start()

    async def refuse(self) -> None:
        self._gateway.answers[SENDS[self._scheme]] = No(code="ThrottlingException", status=400)

    async def allow(self) -> None:
        self._gateway.answers.clear()

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        return msgspec.structs.replace(draft, padding=_TOO_LARGE[self._scheme])


class _Aws(BrokerUnderTest):
    def __init__(self, scheme: str, *, name: str, what: str) -> None:
        self.exempt = {
            Fault.UNROUTABLE: f"Messages for a {what} that does not exist wait until somebody makes it, and none fails."
        }
        self.name = name
        self._scheme = scheme

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        reader = await asyncio.to_thread(find_reader)
        name = reader.name()
        await asyncio.to_thread(reader.queue, name)
        if self._scheme == "sns":
            await asyncio.to_thread(lambda: reader.topic(name, queue=name))
        async with Gateway(reader.url) as gateway, FaultProxy("127.0.0.1", gateway.port) as proxy:
            yield RunningAws(self._scheme, reader, gateway, proxy, name=name)


class Sqs(_Aws):
    """A standard queue, which does not detect duplicates."""

    def __init__(self) -> None:
        super().__init__("sqs", name="SQS (moto)", what="queue")


class Sns(_Aws):
    """A topic with a queue behind it."""

    def __init__(self) -> None:
        super().__init__("sns", name="SNS (moto)", what="topic")
