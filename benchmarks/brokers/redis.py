"""Redis: redis-py's pipeline of XADD, without retries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from secrets import token_hex
from typing import Final
from urllib.parse import quote

from redis.asyncio import Redis as Client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benchmarks.brokers.broker import Row, make_attribute_builder
from benchmarks.brokers.runner import measure
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport

__all__ = ["Redis", "redis"]

URL: Final = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
_attributes: Final = make_attribute_builder("ce-")


class Redis:
    """A stream of its own."""

    name = "redis"
    messages = 40_000

    def __init__(self) -> None:
        self._prefix = f"pillarbox-bench-{token_hex(4)}:"
        self._client = Client.from_url(URL, retry=Retry(NoBackoff(), 0))

    async def open(self) -> None:
        await self._client.ping()

    async def close(self) -> None:
        await self.empty()
        await self._client.aclose()

    async def send(self, rows: Sequence[Row]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for row in rows:
                fields: dict[str, str | bytes] = {
                    **_attributes(row),
                    "content-type": row.content_type,
                    "data": row.payload,
                }
                pipeline.xadd(self._prefix + row.topic, fields)  # type: ignore[arg-type, unused-awaitable]
            answers = await pipeline.execute()
        assert len(answers) == len(rows)

    async def empty(self) -> None:
        await self._client.delete(f"{self._prefix}orders")

    def transport(self) -> Transport:
        return transport_from_url(f"{URL}?key={quote(self._prefix + '{topic}')}")


async def redis() -> None:
    """`redis`."""
    await measure(Redis())
