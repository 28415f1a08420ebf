"""The consumer at Redis: a stream of the demo's own and a group, read with a plain client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pillarbox.cloudevents import REDIS, CloudEvent, read
from pillarbox.demo.intakes import Taker, reaching, take
from pillarbox.demo.line import Line, broker_line, new_name
from pillarbox.errors import MissingExtra

try:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError
except ModuleNotFoundError as error:
    raise MissingExtra("redis", extra="redis", needed_for="The demo over Redis") from error

__all__ = ["RedisIntake", "redis_line"]

_GROUP: Final = "demo"
_CONSUMER: Final = "one"
_COUNT: Final = 50
_WAIT: Final = 2_000
"""Milliseconds until a read that found nothing is repeated."""
_CONNECT_WITHIN: Final = 10.0
_MINE: Final = "0"
_NEW: Final = ">"


def redis_line(url: str) -> Line:
    """To a stream of a new name."""
    name = new_name()
    return broker_line("redis", url, name=name, options={"key": name})


class RedisIntake:
    """A stream, and a consumer group that begins at its beginning. What is read together is acknowledged together."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def prepare(self) -> None:
        async with self._client() as client:
            await client.xgroup_create(self._line.name, _GROUP, id="0", mkstream=True)

    async def remove(self) -> None:
        async with self._client() as client:
            await client.delete(self._line.name)

    async def is_ready(self) -> bool:
        """Always: the stream keeps what comes."""
        return True

    async def serve(self, taker: Taker) -> None:
        async with self._client() as client:
            # First what was in the hands of a killed one: a new entry before it would be out of order.
            start = _MINE
            while True:
                entries = await self._read(client, start)
                for fields in entries.values():
                    take(taker, _event(fields))
                if entries:
                    await client.xack(self._line.name, _GROUP, *entries)
                else:
                    start = _NEW

    async def _read(self, client: Redis, start: str) -> dict[bytes, dict[bytes, bytes]]:
        """Entries by their ids, in order."""
        found: Any = await client.xreadgroup(_GROUP, _CONSUMER, {self._line.name: start}, count=_COUNT, block=_WAIT)
        return dict(found[0][1]) if found else {}

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Redis]:
        with reaching(self._line, RedisError):
            client = Redis.from_url(self._line.at, socket_connect_timeout=_CONNECT_WITHIN, protocol=2)
            try:
                await client.ping()
                yield client
            finally:
                await client.aclose()


def _event(fields: dict[bytes, bytes]) -> CloudEvent:
    headers: dict[str, object] = {name.decode(): value for name, value in fields.items()}
    return read(headers, fields[b"data"], binding=REDIS)
