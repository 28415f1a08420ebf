"""Redis Streams: each message is an entry of a stream, added many at once. For Valkey too."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.brokers.errors import connection_broken_error
from pillarbox.brokers.redis.checks import check_server
from pillarbox.brokers.redis.connection import Connection, ConnectionBroken, ConnectionPool, Server
from pillarbox.brokers.redis.encoding import EncodedMessage, Encoder, encode_wait
from pillarbox.brokers.redis.errors import describe_ping_reply, read_add_reply, read_wait_reply
from pillarbox.brokers.redis.settings import NAME, Durability, RedisSettings, redis_settings
from pillarbox.brokers.send_batch import DELIVERED, Answer, NotAnswered, collect_outcomes, encode_each
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import compile_template, describe_address
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message

__all__ = ["RedisTransport", "redis_transport"]

_log: Final = logging.getLogger(__name__)
_CHUNK: Final = 1024 * 1024
"""Bytes that are written before the replies to them are read: more would only fill buffers."""


class RedisTransport:
    """Adds messages as CloudEvents to streams.

    Delivered means that the server replied with the entry's id, and that as many disks and replicas have it as the
    option durability requires. Secrets are read when this is built.
    """

    def __init__(self, settings: RedisSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME, addresses="{" in settings.key, ping_is_witness=True)
        self.settings = settings
        self._server = Server.from_settings(settings, environ=environ)
        self._pool = ConnectionPool(self._server)
        key = compile_template(settings.key, option="key", transport=NAME)
        self._encoder = Encoder(key=key, mode=settings.mode, create=settings.create, maxlen=settings.maxlen)
        self._seconds = settings.timeout.total_seconds()
        # The server stops waiting well before we do, so that its count arrives in time.
        self._wait = encode_wait(settings.required_durability, milliseconds=max(1, round(self._seconds * 500)))
        if settings.maxlen is not None:
            _log.warning("maxlen=%d: the oldest entries of a stream are dropped, read or not.", settings.maxlen)

    def __repr__(self) -> str:
        return f"RedisTransport({self.settings!r})"

    async def open(self) -> None:
        self._pool.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._pool.close()

    async def ping(self) -> None:
        async with self._pool.borrow() as connection:
            self._update_limit(connection)
            try:
                async with asyncio.timeout(self._seconds):
                    reply = await connection.call("PING")
            except (ConnectionBroken, TimeoutError) as error:
                await connection.close()
                reason = str(error) or f"no answer within {self._seconds:g} s"
                raise TransportUnavailable(f"{self._server.where} cannot be reached ({reason}).") from error
        if reply != b"PONG":
            raise TransportUnavailable(f"{self._server.where} is out of service ({describe_ping_reply(reply)}).")

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, stream=self._encoder.key)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        async with self._pool.borrow() as connection:
            self._update_limit(connection)
            limit, encode = connection.max_field, self._encoder.encode
            encoded = encode_each(messages, lambda message: encode(message, limit=limit), broker="Redis")
            pipeline = _Pipeline(
                encoded,
                durability=self.settings.required_durability,
                wait=self._wait,
                is_fixed="{" not in self.settings.key,
            )
            try:
                async with asyncio.timeout(self._seconds):
                    await pipeline.run(connection)
            except TimeoutError:
                await connection.close()  # its replies would be taken for those of the next batch
            except ConnectionBroken as error:
                await connection.close()
                pipeline.interrupt(str(connection_broken_error(self._server.where, str(error))))
            except BaseException:
                await connection.close()
                raise
        late = f"{self._server.where} gave no answer within {self._seconds:g} s."
        return collect_outcomes(pipeline.answers, late=late, is_written=pipeline.is_written)

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        async with self._pool.borrow() as connection:
            try:
                async with asyncio.timeout(self._seconds):
                    return await check_server(connection, self.settings, topics=topics)
            except (ConnectionBroken, TimeoutError) as error:
                await connection.close()
                raise TransportUnavailable(f"{self._server.where} could not be looked at ({error}).") from error

    def _update_limit(self, connection: Connection) -> None:
        if self.features.max_payload != connection.max_field:
            self.features = msgspec.structs.replace(self.features, max_payload=connection.max_field)


def redis_transport(url: TransportUrl) -> RedisTransport:
    """Build the transport for `redis:` and `rediss:`."""
    return RedisTransport(redis_settings(url))


class _Pipeline:
    """The messages of one send, and their answers so far. An answer stays, however the send ends."""

    def __init__(
        self,
        messages: Sequence[EncodedMessage | Outcome],
        *,
        durability: Durability,
        wait: bytes | None,
        is_fixed: bool,
    ) -> None:
        self.answers: list[Answer | None] = [message if isinstance(message, Outcome) else None for message in messages]
        self.is_written = False
        """Something of it was written."""
        self._messages = messages
        self._durability = durability
        self._wait = wait
        self._is_fixed = is_fixed

    async def run(self, connection: Connection) -> None:
        """Add all messages, and wait until they are durable; raise `ConnectionBroken` when the connection breaks."""
        try:
            for chunk in self._split():
                self.is_written = True
                await connection.send(b"".join([piece for _, message in chunk for piece in message.pieces]))
                for index, message in chunk:
                    answer = self.answers[index] = read_add_reply(
                        await connection.read_reply(), key=message.key, is_fixed=self._is_fixed
                    )
                    if connection.is_broken:
                        # The server closed it over this message: too large, or a state in which it takes nothing.
                        if isinstance(answer, NotAnswered):
                            self._answer_rest(answer)
                        return
            await self._wait_until_durable(connection)
        except BaseException:
            # What was added, but is not known to be durable, was not delivered.
            if self._wait is not None:
                self._replace_delivered(None)
            raise

    def interrupt(self, reason: str) -> None:
        """End it: no more replies will come."""
        self._answer_rest(NotAnswered(reason))

    def _split(self) -> Iterator[Sequence[tuple[int, EncodedMessage]]]:
        chunk: list[tuple[int, EncodedMessage]] = []
        size = 0
        for index, message in enumerate(self._messages):
            if isinstance(message, Outcome):
                continue
            if chunk and size + message.size > _CHUNK:
                yield chunk
                chunk, size = [], 0
            chunk.append((index, message))
            size += message.size
        if chunk:
            yield chunk

    async def _wait_until_durable(self, connection: Connection) -> None:
        if self._wait is None or DELIVERED not in self.answers:
            return
        await connection.send(self._wait)
        answer = read_wait_reply(await connection.read_reply(), self._durability)
        if answer is not None:
            self._replace_delivered(answer)

    def _answer_rest(self, answer: Answer) -> None:
        self.answers = [answer if known is None else known for known in self.answers]

    def _replace_delivered(self, answer: Answer | None) -> None:
        self.answers = [answer if known is DELIVERED else known for known in self.answers]
