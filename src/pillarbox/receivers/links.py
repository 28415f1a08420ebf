"""The one link of a receiver to its server: made when it is needed, and made anew after it broke; and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Received

__all__ = ["Link", "LinkedReceiver", "Links", "Token"]


class Link(Protocol):
    """A connection that stands, or has broken for a reason."""

    @property
    def reason(self) -> object: ...

    async def acknowledge(self, delivery: Any, /) -> None: ...

    async def give_back(self, delivery: Any, /) -> None: ...

    async def close(self) -> None: ...


L = TypeVar("L", bound=Link)


class Links(Generic[L]):
    """Keeps the link that stands. Nothing is repaired in the background: whoever asks next gets a new one."""

    def __init__(self, name: str, make: Callable[[], Awaitable[L]]) -> None:
        self._name = name
        self._make = make
        self._making = asyncio.Lock()
        self._is_open = False
        self.current: L | None = None
        """What was delivered over another one cannot be answered any more."""

    async def open(self) -> None:
        self._is_open = True
        try:
            await self.standing()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_open = False
        await self._hang_up()

    async def standing(self) -> L:
        """The link that stands, or a new one. `TransportUnavailable` when there is none to be had."""
        link = self.current
        if link is not None and link.reason is None:
            return link
        async with self._making:
            self._insist_on_open()
            if self.current is None or self.current.reason is not None:
                await self._hang_up()
                self.current = await self._made()
            return self.current

    async def _made(self) -> L:
        link = await self._make()
        try:
            self._insist_on_open()
        except TransportUnavailable:
            await link.close()
            raise
        return link

    async def _hang_up(self) -> None:
        if self.current is not None:
            link, self.current = self.current, None
            await link.close()

    def _insist_on_open(self) -> None:
        if not self._is_open:
            raise TransportUnavailable(f"The {self._name} receiver is not open; call open() first.")


class Token(NamedTuple):
    """A delivery as its link names it, which means something on that link alone."""

    link: Link
    delivery: Any


class LinkedReceiver(Generic[L]):
    """Opening, closing and answering, over the link that stands."""

    def __init__(self, name: str, make: Callable[[], Awaitable[L]]) -> None:
        self._links = Links(name, make)

    async def open(self) -> None:
        await self._links.open()

    async def close(self) -> None:
        await self._links.close()

    async def acknowledge(self, received: Received) -> None:
        token: Token = received.token
        if token.link is self._links.current:
            await token.link.acknowledge(token.delivery)

    async def give_back(self, received: Received) -> None:
        token: Token = received.token
        if token.link is self._links.current:
            await token.link.give_back(token.delivery)
