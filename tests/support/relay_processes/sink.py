"""The destination: one file that all relays append to, so that its lines stand in the order of arrival."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.message import Message
from tests.support.relay_processes.ticks import Tick

__all__ = ["Delivery", "SinkTransport", "deliveries"]


class Delivery(msgspec.Struct, frozen=True):
    """One line of the file."""

    tick: Tick
    id: int
    pid: int
    at: int


class SinkTransport:
    """Writes one line for each message, in one piece, and acknowledges what is written. Nothing waits for the disk."""

    def __init__(self, path: Path, *, latency: float) -> None:
        self.features = TransportFeatures(name="sink", batch=50, runs=True)
        self._path = path
        self._latency = latency
        self._file = -1

    async def open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def ping(self) -> None:
        pass

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await asyncio.sleep(self._latency)
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> Outcome:
        tick = msgspec.json.decode(message.payload, type=Tick)
        if tick.deadly:
            os._exit(1)
        line = msgspec.json.encode(Delivery(tick, message.id, os.getpid(), time.monotonic_ns())) + b"\n"
        assert os.write(self._file, line) == len(line)
        return Outcome(True)


def deliveries(path: Path) -> list[Delivery]:
    """What has arrived, in order."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Delivery) for line in lines if line.endswith(b"\n")]
