"""A few connections, each for one batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.redis.link import Link, LinkBroken, Place, linked

__all__ = ["Links"]

_IDLE: Final = 1.0
"""Seconds after which a connection has to prove that it still stands, so that no message is blamed for it."""


class Links:
    """Lends connections, and makes them when none is free. One that breaks takes the idle ones with it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: list[Link] = []
        self._slots = asyncio.Semaphore(place.settings.connections)
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        """Close the idle ones; those that are lent are closed when they come back."""
        self._is_open = False
        await self._drop_idle()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Link]:
        """A connection for one batch; `TransportUnavailable` when there is no way to the server."""
        async with self._slots:
            link = await self._taken()
            try:
                yield link
            finally:
                await self._returned(link)

    async def _taken(self) -> Link:
        self._insist_on_open()
        while self._idle:
            link = self._idle.pop()
            if await self._stands(link):
                return link
            await link.close()
        link = await linked(self._place)
        try:
            self._insist_on_open()
        except TransportUnavailable:
            await link.close()
            raise
        return link

    async def _stands(self, link: Link) -> bool:
        if asyncio.get_running_loop().time() - link.used_at < _IDLE:
            return not link.is_broken
        try:
            async with asyncio.timeout(self._place.settings.timeout.total_seconds()):
                return await link.ask("PING") == b"PONG"
        except (LinkBroken, TimeoutError):
            await self._drop_idle()
            return False
        except BaseException:
            await link.close()
            raise

    async def _returned(self, link: Link) -> None:
        if link.is_broken:
            await self._drop_idle()
        if link.is_broken or not self._is_open:
            await link.close()
            return
        link.used_at = asyncio.get_running_loop().time()
        self._idle.append(link)

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()

    def _insist_on_open(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The redis transport is not open; call open() first.")
