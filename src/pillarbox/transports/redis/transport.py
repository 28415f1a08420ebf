"""Redis Streams: each message is an entry of a stream, added many at once. For Valkey too."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, TransportFeatures
from pillarbox.transports.answers import outcomes
from pillarbox.transports.redis.entries import Entry, Form, waiting
from pillarbox.transports.redis.exchange import Exchange
from pillarbox.transports.redis.inspecting import inspected
from pillarbox.transports.redis.link import Link, LinkBroken, Place
from pillarbox.transports.redis.links import Links
from pillarbox.transports.redis.settings import NAME, RedisSettings, redis_settings
from pillarbox.transports.redis.verdicts import outage_of
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["RedisTransport", "redis_transport"]

_log: Final = logging.getLogger(__name__)


class RedisTransport:
    """Adds messages as CloudEvents to streams.

    Delivered means that the server replied with the entry's id, and that as many disks and replicas have it as the
    option durability wants. Secrets are read when this is made.
    """

    def __init__(self, settings: RedisSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME)
        self.settings = settings
        self._place = Place.of(settings, environ=environ)
        self._links = Links(self._place)
        key = address(settings.key, option="key", transport=NAME)
        self._form = Form(key=key, mode=settings.mode, create=settings.create, maxlen=settings.maxlen)
        self._seconds = settings.timeout.total_seconds()
        # The server's patience ends well before ours, so that its count arrives in time.
        self._wait = waiting(settings.wanted, milliseconds=max(1, round(self._seconds * 500)))
        if settings.maxlen is not None:
            _log.warning("maxlen=%d: the oldest entries of a stream are dropped, read or not.", settings.maxlen)

    def __repr__(self) -> str:
        return f"RedisTransport({self.settings!r})"

    async def open(self) -> None:
        self._links.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._links.close()

    async def ping(self) -> None:
        async with self._links.lent() as link:
            self._note_limit(link)
            reply = await self._answered(link, "PING")
        if reply != b"PONG":
            raise TransportUnavailable(f"{self._place.where} is out of service ({outage_of(reply)}).")

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        async with self._links.lent() as link:
            self._note_limit(link)
            parts = [self._entry(message, link.most) for message in messages]
            exchange = Exchange(parts, wanted=self.settings.wanted, wait=self._wait)
            await self._exchanged(exchange, link)
        late = f"{self._place.where} gave no answer within {self._seconds:g} s."
        return outcomes(exchange.answers, late=late, under_way=exchange.is_under_way)

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        async with self._links.lent() as link:
            try:
                async with asyncio.timeout(self._seconds):
                    return await inspected(link, self.settings, topics=topics)
            except (LinkBroken, TimeoutError) as error:
                await link.close()
                raise TransportUnavailable(f"{self._place.where} could not be looked at ({error}).") from error

    async def _exchanged(self, exchange: Exchange, link: Link) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await exchange.run(link)
        except TimeoutError:
            await link.close()  # its replies would be taken for those of the next batch
        except LinkBroken as error:
            await link.close()
            exchange.interrupt(f"The connection to {self._place.where} broke ({error}).")
        except BaseException:
            await link.close()
            raise

    async def _answered(self, link: Link, *words: str) -> object:
        try:
            async with asyncio.timeout(self._seconds):
                return await link.ask(*words)
        except (LinkBroken, TimeoutError) as error:
            await link.close()
            why = str(error) or f"no answer within {self._seconds:g} s"
            raise TransportUnavailable(f"{self._place.where} cannot be reached ({why}).") from error

    def _entry(self, message: Message, limit: int) -> Entry | Outcome:
        try:
            return self._form.entry(message, limit=limit)
        except MessageRejected as error:
            return Outcome(False, f"The message cannot be sent to Redis: {error}.", rejected=True)

    def _note_limit(self, link: Link) -> None:
        if self.features.max_payload != link.most:
            self.features = msgspec.structs.replace(self.features, max_payload=link.most)


def redis_transport(url: TransportUrl) -> RedisTransport:
    """For `redis:` and `rediss:`."""
    return RedisTransport(redis_settings(url))
