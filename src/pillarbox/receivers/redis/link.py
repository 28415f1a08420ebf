"""Two connections to the server, and what came over them. When one breaks both stay broken: others are made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Self

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.redis.deliveries import Delivery, place
from pillarbox.receivers.redis.group import Group
from pillarbox.receivers.redis.settings import RedisReceiverSettings
from pillarbox.receivers.redis.wire import Wire
from pillarbox.transports.redis.link import LinkBroken, Place, linked

__all__ = ["Link"]

_log: Final = logging.getLogger(__name__)
_BLOCK: Final = 5.0
"""Seconds that a read waits at the server, and in which somebody notices what was given back, at the latest."""
_GOODBYE: Final = 5.0
_START: Final = "0-0"


class Link:
    """Reads entries, gives signs of life for those in hand, and acknowledges them.

    Reading waits at the server, and a connection that waits does nothing else: there is another one for the rest.
    """

    def __init__(self, settings: RedisReceiverSettings, *, group: Group, where: str) -> None:
        self.reason: str | None = None
        """Why it is broken; None while it stands."""
        self._group = group
        self._where = where
        self._stream = settings.stream
        self._beats = settings.claim_after.total_seconds() / 3
        self._reader: Wire
        self._teller: Wire
        self._reader_id: str | None = None
        """By which the server knows the connection that reads."""
        self._waiting: deque[Delivery] = deque()
        self._in_hand: dict[str, Delivery] = {}
        """All that came and is neither acknowledged nor given back."""
        self._came = asyncio.Event()
        self._wanted = asyncio.Event()
        self._limit = 1
        self._takers = 0
        self._own_after: str | None = _START
        """Up to where the entries that were ours before this link are read; None when all are."""
        self._cursor = _START
        self._look_at = 0.0
        """When to look for abandoned entries again."""
        self._is_leaving = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def made(cls, server: Place, settings: RedisReceiverSettings, *, name: str) -> Self:
        """A link to the group; `TransportUnavailable` when there is no way to it."""
        group = Group(settings, name=name, where=server.where)
        link = cls(settings, group=group, where=server.where)
        seconds = settings.timeout.total_seconds()
        link._teller = Wire(await linked(server), seconds=seconds, broke=link._broke)
        try:
            link._reader = Wire(await linked(server), seconds=seconds, broke=link._broke)
        except BaseException:
            await link._teller.close()
            raise
        try:
            await group.see_to(link._teller)
            link._reader_id = await _id_of(link._reader)
        except BaseException:
            await link._hang_up()
            raise
        link._tasks = [asyncio.create_task(link._reading()), asyncio.create_task(link._beating())]
        return link

    async def see_to_group(self) -> None:
        """Ask for the group; a declared one is made again, should somebody have removed it."""
        await self._group.see_to(self._teller)

    async def take(self, limit: int) -> list[Delivery]:
        """What came, in order, at least one; `TransportUnavailable` as soon as the link is broken."""
        self._takers += 1
        try:
            while True:
                if self.reason is not None:
                    raise TransportUnavailable(self.reason)
                if self._waiting:
                    return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
                self._came.clear()
                self._limit = limit
                self._wanted.set()
                await self._came.wait()
        finally:
            self._takers -= 1

    async def acknowledge(self, delivery: Delivery) -> None:
        """The server has heard it, or the link is broken and it comes again."""
        if self._let_go(delivery):
            with self._ending():
                await self._group.acknowledge(self._teller, delivery.id)

    async def give_back(self, delivery: Delivery) -> None:
        """For anybody to take, in the stream's order."""
        if self._let_go(delivery):
            with self._ending():
                await self._group.give_back(self._teller, delivery.id)
                self._cursor, self._look_at = _START, 0.0

    async def close(self) -> None:
        """Give back what is in hand, leave the group, and hang up."""
        if self.reason is None:
            with contextlib.suppress(TransportUnavailable, TimeoutError):
                async with asyncio.timeout(_BLOCK + _GOODBYE):
                    await self._leave()
        self.end("it was closed")
        await self._hang_up()

    def end(self, why: str) -> None:
        """Break, and tell who waits."""
        self._finish(f"The connection to {self._where} broke ({why}).")

    # --- what runs all the time ---

    async def _reading(self) -> None:
        with self._ending():
            while not self._is_leaving:
                if self._waiting or not self._takers:
                    self._wanted.clear()
                    await self._wanted.wait()
                    continue
                for delivery in await self._fetched(self._limit):
                    self._in_hand[delivery.id] = delivery
                    self._waiting.append(delivery)
                if self._waiting:
                    self._came.set()

    async def _fetched(self, limit: int) -> Sequence[Delivery]:
        """First what was ours before, then what others left, then what is new: about the stream's order."""
        if self._own_after is not None:
            return await self._own(self._own_after, limit)
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            return await self._abandoned(limit)
        found = await self._group.fresh(self._reader, limit=limit, seconds=min(_BLOCK, self._look_at - now))
        return found.deliveries

    async def _own(self, after: str, limit: int) -> Sequence[Delivery]:
        found = await self._group.own(self._reader, after=after, limit=limit)
        if found.trimmed:
            await self._group.acknowledge(self._teller, *found.trimmed)
            self._tell_of(found.trimmed)
        ids = [*(delivery.id for delivery in found.deliveries), *found.trimmed]
        self._own_after = max(ids, key=place) if ids else None
        return found.deliveries

    async def _abandoned(self, limit: int) -> Sequence[Delivery]:
        """What is in hand here is not taken over from ourselves, however late its sign of life."""
        self._look_at = asyncio.get_running_loop().time() + min(_BLOCK, self._beats)
        found = await self._group.abandoned(self._reader, cursor=self._cursor, limit=limit)
        self._cursor = found.cursor
        if found.cursor != _START:
            self._look_at = 0.0
        self._tell_of(found.trimmed)
        return [delivery for delivery in found.deliveries if delivery.id not in self._in_hand]

    async def _beating(self) -> None:
        """What is in hand is being handled, however long that takes."""
        with self._ending():
            while True:
                await asyncio.sleep(self._beats)
                if self._in_hand:
                    await self._group.keep(self._teller, set(self._in_hand))

    # --- the end ---

    async def _leave(self) -> None:
        """Only once no read is under way: what it brings would be ours, and nobody would have it."""
        self._is_leaving = True
        self._wanted.set()
        if self._reader_id is not None:
            with contextlib.suppress(LinkBroken):
                await self._teller.ask("CLIENT", "UNBLOCK", self._reader_id)
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        if self.reason is None:
            await self._group.leave(self._teller)

    async def _hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reader.close()
        await self._teller.close()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """What the server refuses ends the link."""
        try:
            yield
        except TransportUnavailable as error:
            self._finish(str(error))

    def _broke(self, why: str) -> None:
        self.end(why)

    def _finish(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._waiting.clear()
        self._came.set()

    def _let_go(self, delivery: Delivery) -> bool:
        """Whether it was in hand."""
        if self.reason is not None or self._in_hand.get(delivery.id) is not delivery:
            return False
        del self._in_hand[delivery.id]
        return True

    def _tell_of(self, trimmed: Sequence[str]) -> None:
        if trimmed:
            _log.warning("Lost: %d entries of %r were trimmed before they were handled.", len(trimmed), self._stream)


async def _id_of(wire: Wire) -> str | None:
    """Many let nobody ask; then a read that waits is waited for."""
    try:
        reply = await wire.ask("CLIENT", "ID")
    except LinkBroken as error:
        raise TransportUnavailable(f"The connection broke ({error}).") from error
    return str(reply) if isinstance(reply, int) else None
