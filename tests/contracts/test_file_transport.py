"""A transport written by following CONTRIBUTING alone: it appends messages to a file. It keeps the contract.

It is here to test the documentation: if this file needs more than CONTRIBUTING tells, CONTRIBUTING is to be mended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pillarbox.cloudevents import CloudEvent, from_structured, to_structured
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.transport_contract import TransportContract, TransportHarness


class FileTransport:
    """Appends each message to a file as one line of JSON. Delivered means that the disk has it."""

    features = TransportFeatures(name="file")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    async def open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise TransportUnavailable(f"{self._path} cannot be opened ({error}): check its folder.") from error

    async def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def ping(self) -> None:
        if self._file is None:
            raise TransportUnavailable("The file is not open: call open() first.")

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await self.ping()
        return await asyncio.to_thread(self._append, messages)

    def _append(self, messages: Sequence[Message]) -> list[Outcome]:
        assert self._file is not None
        os.write(self._file, b"".join(to_structured(message) + b"\n" for message in messages))
        os.fsync(self._file)
        return [Outcome(True)] * len(messages)


class FileHarness(TransportHarness):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.transport = FileTransport(path)

    async def received(self) -> Sequence[CloudEvent]:
        return [from_structured(line) for line in self._path.read_bytes().splitlines()]


class TestFileTransport(TransportContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[FileHarness]:
        harness = FileHarness(tmp_path / "messages.jsonl")
        await harness.transport.open()
        yield harness
        await harness.transport.close()
