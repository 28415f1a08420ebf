"""NATS: nats-py's JetStream publishes, all of a window sent before the first answer is awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from secrets import token_hex
from typing import Final

import nats as client
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StorageType

from benchmarks.brokers.broker import Row, make_attribute_builder
from benchmarks.brokers.runner import measure
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport

__all__ = ["Nats", "nats"]

URL: Final = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
_attributes: Final = make_attribute_builder("ce-")


class Nats:
    """A stream of its own, on disk."""

    name = "nats"
    messages = 20_000

    def __init__(self, url: str = URL, *, atomic: bool = False) -> None:
        """`atomic`: the stream takes batches, on a server that has them."""
        self._url = url
        self._atomic = atomic
        self._name = f"pillarbox-bench-{token_hex(4)}"
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None

    async def open(self) -> None:
        self._client = await client.connect(self._url)
        self._stream = self._client.jetstream()
        await self._stream.add_stream(
            name=self._name, subjects=[f"{self._name}.>"], storage=StorageType.FILE, allow_atomic=self._atomic or None
        )

    async def close(self) -> None:
        assert self._client is not None
        assert self._stream is not None
        await self._stream.delete_stream(self._name)
        await self._client.close()

    async def send(self, rows: Sequence[Row]) -> None:
        assert self._stream is not None
        answers = []
        for row in rows:
            headers = _attributes(row)
            headers |= {
                "Nats-Msg-Id": str(row.message_id),
                "ce-datacontenttype": row.content_type,
                "content-type": row.content_type,
            }
            subject = f"{self._name}.{row.topic}"
            answers.append(await self._stream.publish_async(subject, row.payload, headers=headers))
        for answer in await asyncio.gather(*answers):
            assert answer.stream == self._name

    async def empty(self) -> None:
        assert self._stream is not None
        await self._stream.purge_stream(self._name)

    def transport(self) -> Transport:
        return transport_from_url(f"{self._url}?subject={self._name}.{{topic}}")


async def nats() -> None:
    """`nats`."""
    await measure(Nats())
