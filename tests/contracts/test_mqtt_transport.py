"""The MQTT transport keeps the contract, in both CloudEvents modes and both qualities of service, at a real broker."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import pytest

from pillarbox.brokers.mqtt import MqttSettings, MqttTransport
from pillarbox.cloudevents import MQTT, CloudEvent, read
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.mqtt_server import MqttServer, private_mosquitto
from tests.support.mqtt_subscriber import Subscriber
from tests.support.private_mosquitto import PrivateMosquitto
from tests.support.servers import found

_OTHERS = [f"key-{number}" for number in range(1, 20)]


@pytest.fixture(scope="module")
def mqtt_port() -> Iterator[int]:
    with found(MqttServer(), environ=os.environ) as url:
        yield urlsplit(url).port or 1883


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateMosquitto]:
    """One with an access list."""
    with closing(private_mosquitto("acl_file {folder}/acl", files={"acl": "topic readwrite #"})) as broker:
        yield broker


class MqttHarness(TransportHarness):
    """Messages go to `<prefix>/<key>/<topic>`, so that one key can be left without a subscriber."""

    def __init__(self, proxy: FaultProxy, subscriber: Subscriber, settings: MqttSettings) -> None:
        self._prefix = f"pillarbox-{secrets.token_hex(6)}"
        self._proxy = proxy
        self._subscriber = subscriber
        self._refuses = False
        self.transport = _Watched(settings, self)
        subscriber.subscribe(f"{self._prefix}/#")

    def fit(self, message: Message) -> Message:
        return msgspec.structs.replace(message, topic=f"{self._prefix}/{message.key or 'none'}/{message.topic}")

    async def received(self) -> Sequence[CloudEvent]:
        arrived = await asyncio.to_thread(self._subscriber.caught_up)
        return [read(one.headers, one.body, binding=MQTT) for one in arrived]

    async def refuse_next(self) -> None:
        """The broker finds no subscriber for the first message."""
        self._subscriber.subscribe(*(f"{self._prefix}/{key}/#" for key in _OTHERS))
        self._subscriber.unsubscribe(f"{self._prefix}/#")
        self._refuses = True

    async def refused(self) -> None:
        """Once is enough."""
        if self._refuses:
            self._refuses = False
            self._subscriber.subscribe(f"{self._prefix}/#")
            self._subscriber.unsubscribe(*(f"{self._prefix}/{key}/#" for key in _OTHERS))

    async def reject_next(self, message: Message) -> Message:
        return msgspec.structs.replace(message, topic=f"{message.topic}/#")

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


class AccessListHarness(MqttHarness):
    """With QoS 2, Mosquitto does not say that nobody subscribes; but it says that it does not allow a topic."""

    broker: PrivateMosquitto

    async def refuse_next(self) -> None:
        self._allow(f"topic deny {self._prefix}/key-0/#", "topic readwrite #")

    async def refused(self) -> None:
        self._allow("topic readwrite #")

    def _allow(self, *lines: str) -> None:
        self.broker.write("acl", "\n".join(lines))
        self.broker.reload()


class _Watched(MqttTransport):
    """Tells the harness when a message was refused."""

    def __init__(self, settings: MqttSettings, harness: MqttHarness) -> None:
        super().__init__(settings)
        self._harness = harness

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        if not all(outcome.delivered for outcome in outcomes):
            await self._harness.refused()
        return outcomes


H = TypeVar("H", bound=MqttHarness)


@asynccontextmanager
async def _opened(
    make: type[H], port: int, *, mode: Literal["binary", "structured"] = "binary", qos: Literal[1, 2] = 1
) -> AsyncIterator[H]:
    with Subscriber(port) as subscriber:
        async with FaultProxy("127.0.0.1", port) as proxy:
            settings = MqttSettings(url=f"mqtt://{proxy.host}:{proxy.port}", mode=mode, qos=qos)
            harness = make(proxy, subscriber, settings)
            try:
                await harness.transport.open()
                yield harness
            finally:
                await harness.transport.close()


class TestMqttTransport(TransportContract):
    @pytest.fixture
    async def harness(self, mqtt_port: int) -> AsyncIterator[MqttHarness]:
        async with _opened(MqttHarness, mqtt_port) as harness:
            yield harness


class TestStructuredMqttTransport(TransportContract):
    @pytest.fixture
    async def harness(self, mqtt_port: int) -> AsyncIterator[MqttHarness]:
        async with _opened(MqttHarness, mqtt_port, mode="structured") as harness:
            yield harness


class TestExactlyOnceMqttTransport(TransportContract):
    @pytest.fixture
    async def harness(self, broker: PrivateMosquitto) -> AsyncIterator[AccessListHarness]:
        async with _opened(AccessListHarness, broker.port, qos=2) as harness:
            harness.broker = broker
            yield harness
