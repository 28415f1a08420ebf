"""MQTT (Mosquitto) under every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Final

import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.mqtt_server import private_mosquitto
from tests.support.mqtt_subscriber import Subscriber
from tests.support.private_mosquitto import PrivateMosquitto

__all__ = ["Mqtt"]

_SETTINGS: Final = (
    "max_packet_size 100000",
    "max_queued_messages 0",
    "persistence true",
    "persistence_location {folder}/",
)
_ACCESS_LIST: Final = "acl_file {folder}/acl"
"""Only where it is needed: with one, a restarted Mosquitto 2.0 drops what comes for a session that is still away."""
_OPEN: Final = "topic readwrite #"
_DENIED: Final = "topic deny faults/numbered\n" + _OPEN


class RunningMqtt(RunningBroker):
    """A session that is kept for a subscriber who comes at the end."""

    def __init__(self, server: PrivateMosquitto, proxy: FaultProxy) -> None:
        self.topic = "faults/numbered"
        self.proxy = proxy
        self._server = server

    def make_transport(self) -> Transport:
        url = f"mqtt://{self.proxy.host}:{self.proxy.port}?timeout=1s&no_subscribers=reject"
        return transport_from_url(url)

    async def read_received(self) -> Sequence[Arrival]:
        return await asyncio.to_thread(self._read_received)

    def _read_received(self) -> Sequence[Arrival]:
        with Subscriber(self._server.port, name="late") as late:
            return [parse_arrival(one.body, dict(one.user_properties)["id"]) for one in late.caught_up()]

    async def stop(self) -> None:
        """In order: killed, Mosquitto loses what it has not saved yet."""
        await asyncio.to_thread(self._server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def refuse(self) -> None:
        await self._allow(_DENIED)

    async def allow(self) -> None:
        await self._allow(_OPEN)

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        if fault is Fault.TOO_LARGE:
            return msgspec.structs.replace(draft, padding=100_000)
        return msgspec.structs.replace(draft, topic="nobody/listens")

    def subscribe(self) -> None:
        with Subscriber(self._server.port, name="late") as late:
            late.subscribe(self.topic)

    async def _allow(self, access: str) -> None:
        self._server.write("acl", access)
        await asyncio.to_thread(self._server.reload)


class Mqtt(BrokerUnderTest):
    name = "MQTT (Mosquitto)"

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        settings = (*_SETTINGS, _ACCESS_LIST) if fault is Fault.REFUSED else _SETTINGS
        with closing(await asyncio.to_thread(private_mosquitto, *settings, files={"acl": _OPEN})) as server:
            async with FaultProxy("127.0.0.1", server.port) as proxy:
                running = RunningMqtt(server, proxy)
                await asyncio.to_thread(running.subscribe)
                yield running
