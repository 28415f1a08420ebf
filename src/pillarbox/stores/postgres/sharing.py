"""Connections that all stores of one PostgreSQL database share: a pool for work, one for heartbeats, one listener.

Statements name the schema of their tables, so any connection of a database serves any of its schemas. A store whose
calls take long, because somebody locked its tables, must not hold the connections of the others: each store has at
most a part of them at a time, and all stores that are slow at present have another small part together.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from pillarbox.errors import StoreBusy
from pillarbox.stores.postgres.driver import Driver, OnConnect, Pool, Settings
from pillarbox.stores.postgres.notifications import Listener
from pillarbox.tasks import cancel_all

__all__ = ["SharedDatabase", "SharedListener", "SharedPool"]

_HEARTBEATS: Final = 4
"""One of so many connections is for heartbeats alone."""
_LEAST: Final = 3
_ALL_IN_USE: Final = (
    "No connection of those that the stores of a database share was free in time: it will be tried again. If this goes "
    "on, the server is slow, or relay.store_connections too few."
)
_SLOW_AFTER: Final = 1.0
"""Seconds that a call holds a connection from which on its store is slow. A wait for a lock ends after two."""


class SharedDatabase:
    """At most so many connections to one database, and one more that listens, for any number of stores."""

    def __init__(self, driver: Driver, url: str, *, connections: int) -> None:
        size = max(connections, _LEAST)
        heartbeats = max(1, size // _HEARTBEATS)
        self.driver: Final = driver
        self.work: Final = SharedPool(size=size - heartbeats)
        self.heartbeats: Final = SharedPool(size=heartbeats)
        self.listener: Final = SharedListener(driver, url)


class SharedPool:
    """Connections that open with the first share and close with the last one.

    A store has a home among them, which it gets whenever that is free: a statement is prepared once on each connection
    for each schema, and the server keeps its plan. While its home is busy it gets any other.
    """

    def __init__(self, *, size: int) -> None:
        self._size = size
        self.slots_per_store: Final = min(size, max(2, size // 4))
        self.slow_slots: Final = asyncio.Semaphore(max(1, size // 4))
        """For the calls of all stores that are slow."""
        self._shares: set[PoolShare] = set()
        self._opening: asyncio.Task[list[Pool]] | None = None
        self._pools: list[Pool] | None = None
        """Each of one connection."""
        self._free: set[int] = set()
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._homes = itertools.count()

    async def attach(
        self,
        driver: Driver,
        url: str,
        *,
        timeout: float,
        on_connect: OnConnect,
        on_session: Callable[[], None],
        settings: Settings | None,
    ) -> Pool:
        """Return a share. `on_session` is called now, and whenever any of the connections is a new one."""

        async def set_up(connection: Any) -> None:
            await on_connect(connection)
            for share in self._shares:
                share.on_session()

        async def open_pools() -> list[Pool]:
            pools: list[Pool] = []
            try:
                for _ in range(self._size):
                    pools.append(
                        await driver.create_pool(url, size=1, timeout=timeout, on_connect=set_up, settings=settings)
                    )
            except BaseException:
                for pool in pools:
                    pool.abort()
                raise
            return pools

        if self._opening is None:
            self._opening = asyncio.create_task(open_pools())
        share = PoolShare(self, on_session, home=next(self._homes) % self._size)
        self._shares.add(share)
        # All that come while it opens wait for the same attempt, and learn from it that the server is away.
        opening = self._opening
        try:
            pools = await asyncio.shield(opening)
        except BaseException:
            self._shares.discard(share)
            if self._opening is opening and (opening.done() or not self._shares):
                self._opening = None
                await self._abandon(opening)
            raise
        if self._pools is not pools:
            self._pools, self._free = pools, set(range(self._size))
        on_session()
        return share

    @staticmethod
    async def _abandon(opening: asyncio.Task[list[Pool]]) -> None:
        """End an attempt that nobody waits for any more."""
        opening.cancel()
        with contextlib.suppress(BaseException):
            for pool in await opening:
                pool.abort()

    async def detach(self, share: PoolShare) -> None:
        """Take a share back; close the connections with the last one."""
        if share not in self._shares:
            return
        self._shares.discard(share)
        if self._shares or self._pools is None:
            return
        pools, self._pools, self._opening = self._pools, None, None
        try:
            await asyncio.gather(*(pool.close() for pool in pools))
        except BaseException:
            for pool in pools:
                pool.abort()
            raise

    @asynccontextmanager
    async def lend(self, home: int, *, timeout: float) -> AsyncIterator[Any]:
        """Lend the connection at home if it is free, else any that is, else the first that comes back."""
        if self._pools is None:
            raise ConnectionResetError("the shared connections are closed")
        pools, place = self._pools, await self._take(home)
        try:
            async with pools[place].acquire(timeout=timeout) as connection:
                yield connection
        finally:
            if pools is self._pools:
                self._give_back(place)

    async def _take(self, home: int) -> int:
        if self._free:
            place = home if home in self._free else min(self._free)
            self._free.discard(place)
            return place
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    def _give_back(self, place: int) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(place)
                return
        self._free.add(place)


class PoolShare:
    """`Pool` of one store: lends what is shared, and no more at a time than this store's part."""

    def __init__(self, shared: SharedPool, on_session: Callable[[], None], *, home: int) -> None:
        self._shared = shared
        self._slots = asyncio.Semaphore(shared.slots_per_store)
        self._home = home
        self.on_session = on_session
        self.is_slow = False

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout):
                    await held.enter_async_context(self._slots)
                    if self.is_slow:
                        await held.enter_async_context(self._shared.slow_slots)
                    connection = await held.enter_async_context(self._shared.lend(self._home, timeout=timeout))
            except TimeoutError as error:
                raise StoreBusy(_ALL_IN_USE) from error
            began_at = loop.time()
            try:
                yield connection
            finally:
                self.is_slow = loop.time() - began_at > _SLOW_AFTER

    async def close(self) -> None:
        await self._shared.detach(self)

    def abort(self) -> None:
        """Do nothing: the other stores use these connections too. A silent one is dropped alone."""


class SharedListener:
    """One listening connection for all stores of a database. It listens while at least one store does."""

    def __init__(self, driver: Driver, url: str) -> None:
        self._driver = driver
        self._url = url
        self._wakes: dict[str, Callable[[], None]] = {}
        """By the oid of the table, which is what a notification holds."""
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listen(
        self, find_oid: Callable[[], Awaitable[str]], wake: Callable[[], None]
    ) -> AsyncIterator[SharedListener]:
        """Call `wake` after inserts into the table with that oid, while the block runs."""
        oid = await find_oid()
        self._wakes[oid] = wake
        if self._task is None:
            self._listener = Listener(
                self._driver, self._url, table=None, wake=self._wake_all, on_table=self._wake_table
            )
            self._task = asyncio.create_task(self._listener.run())
        elif self.is_listening:
            wake()  # what was committed before this moment notified nobody
        try:
            yield self
        finally:
            if self._wakes.get(oid) is wake:
                del self._wakes[oid]
            if not self._wakes and self._task is not None:
                task, self._task, self._listener = self._task, None, None
                await cancel_all([task])

    @property
    def is_listening(self) -> bool:
        return self._listener is not None and self._listener.is_listening

    def _wake_table(self, oid: str) -> None:
        if (wake := self._wakes.get(oid)) is not None:
            wake()

    def _wake_all(self) -> None:
        for wake in list(self._wakes.values()):
            wake()
