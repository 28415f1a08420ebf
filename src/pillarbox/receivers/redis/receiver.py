"""Redis Streams: a consumer group, read with acknowledgement. For Valkey too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pillarbox.protocols import Received, ReceiverFeatures
from pillarbox.receivers.links import LinkedReceiver, Token
from pillarbox.receivers.redis.deliveries import received_of
from pillarbox.receivers.redis.link import Link
from pillarbox.receivers.redis.settings import NAME, RedisReceiverSettings, new_name, redis_receiver_settings
from pillarbox.transports.redis.link import Place
from pillarbox.transports.urls import TransportUrl

__all__ = ["RedisReceiver", "redis_receiver"]


class RedisReceiver(LinkedReceiver[Link]):
    """Reads one consumer group. Secrets are read when this is made.

    While an entry is in hand the server is told so, and nobody takes it over, however long its handler takes. A
    connection that broke is made anew by the next `receive` or `ping`, not in the background.
    """

    def __init__(self, settings: RedisReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(NAME, lambda: Link.made(self._place, settings, name=self.name))
        self.features = ReceiverFeatures(name=NAME)
        self.settings = settings
        self.name = settings.consumer or new_name()
        """Who we are in the group."""
        self._place = Place.of(settings.server, environ=environ)

    def __repr__(self) -> str:
        return f"RedisReceiver({self.settings!r})"

    async def ping(self) -> None:
        """Ask for the group; a declared one is made again, should somebody have removed it."""
        link = await self._links.standing()
        await link.see_to_group()

    async def receive(self, *, limit: int) -> Sequence[Received]:
        link = await self._links.standing()
        stream = self.settings.stream
        return [
            received_of(delivery, stream=stream, token=Token(link, delivery)) for delivery in await link.take(limit)
        ]


def redis_receiver(url: TransportUrl) -> RedisReceiver:
    """For `redis:` and `rediss:`."""
    return RedisReceiver(redis_receiver_settings(url))
