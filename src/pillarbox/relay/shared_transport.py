"""One transport for one destination of many stores: a broker sees one connection, however many stores there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from pillarbox.contracts.transport import Addressing, Outcome, Transport, TransportFeatures
from pillarbox.message import Message

__all__ = ["SharedTransport"]


class SharedTransport:
    """Connects with its first user and disconnects with its last one.

    Calls of `send` may overlap, so the relays of all stores send over it side by side. Those that connect or ping at
    the same time wait for one attempt: a broker that comes back is not met by one from each store.
    """

    def __init__(self, build: Callable[[], Transport]) -> None:
        self._transport = build()
        self._users: set[TransportShare] = set()
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None

    def share(self) -> Transport:
        """Return a transport for the relay of one store."""
        return TransportShare(self, self._transport)

    async def open(self, user: TransportShare) -> None:
        self._users.add(user)
        if self._is_open:
            return
        if self._opening is None:
            self._opening = _start(self._open())
        try:
            await _wait_together(self._opening)
        except BaseException:
            self._users.discard(user)
            raise

    async def _open(self) -> None:
        try:
            await self._transport.open()
        finally:
            self._opening = None
        self._is_open = bool(self._users)
        if not self._is_open:  # nobody waited for it to the end
            await self._transport.close()

    async def ping(self) -> None:
        if self._pinging is None:
            self._pinging = _start(self._ping())
        await _wait_together(self._pinging)

    async def _ping(self) -> None:
        try:
            await self._transport.ping()
        finally:
            self._pinging = None

    async def close(self, user: TransportShare) -> None:
        if user not in self._users:
            return
        self._users.discard(user)
        if not self._users and self._is_open:
            self._is_open = False
            await self._transport.close()


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to learn of it
    return task


async def _wait_together(task: asyncio.Task[None]) -> None:
    """Wait for what others wait for too: whoever is cancelled, or has no time left, leaves it to them."""
    waited: Awaitable[None] = asyncio.shield(task)
    await waited


class TransportShare:
    """`Transport` of one store's relay over a shared one."""

    def __init__(self, shared: SharedTransport, transport: Transport) -> None:
        self._shared = shared
        self._transport = transport

    @property
    def features(self) -> TransportFeatures:
        return self._transport.features

    async def open(self) -> None:
        await self._shared.open(self)

    async def close(self) -> None:
        await self._shared.close(self)

    async def ping(self) -> None:
        await self._shared.ping()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await self._transport.send(messages)

    def get_address(self, message: Message) -> str | None:
        return self._transport.get_address(message) if isinstance(self._transport, Addressing) else None
