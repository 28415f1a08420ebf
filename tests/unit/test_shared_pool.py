"""Connections that the schemas of one database share: one whose calls hang leaves some to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from pillarbox.errors import StoreBusy
from pillarbox.stores.postgres import sharing
from pillarbox.stores.postgres.driver import Pool
from pillarbox.stores.postgres.sharing import SharedPool

SOON = 0.01
WITHIN = 60.0


class OneConnection:
    """A driver's pool of one connection, which is an object."""

    def __init__(self) -> None:
        self.is_closed = False

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Any]:
        del timeout
        yield self

    async def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class Driver:
    """Opens connections to nothing, and counts them."""

    def __init__(self) -> None:
        self.opened: list[OneConnection] = []

    async def create_pool(self, url: str, *, size: int, **_: Any) -> OneConnection:
        del url
        assert size == 1
        self.opened.append(OneConnection())
        return self.opened[-1]


async def attach(shared: SharedPool, driver: Any) -> Pool:
    async def on_connect(_: Any) -> None: ...

    return await shared.attach(
        driver, "postgresql:///x", timeout=WITHIN, on_connect=on_connect, on_session=lambda: None, settings=None
    )


async def take_all(held: AsyncExitStack, pool: Pool) -> int:
    """Take connections of one store until it gets no more, and return how many these were."""
    count = 0
    try:
        while True:
            await held.enter_async_context(pool.acquire(timeout=SOON))
            count += 1
    except StoreBusy:
        return count


async def test_no_store_has_more_than_its_part_of_the_connections() -> None:
    shared, driver = SharedPool(size=8), Driver()
    locked, other = await attach(shared, driver), await attach(shared, driver)
    async with AsyncExitStack() as held:
        assert await take_all(held, locked) == 2
        assert await take_all(held, other) == 2
    assert len(driver.opened) == 8


async def test_all_stores_that_are_slow_have_a_quarter_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, driver = SharedPool(size=8), Driver()
    slow = [await attach(shared, driver) for _ in range(10)]
    with monkeypatch.context() as patched:
        patched.setattr(sharing, "_SLOW_AFTER", -1.0)  # whatever they do takes too long
        for pool in slow:
            async with pool.acquire(timeout=WITHIN):
                pass
    calm = await attach(shared, driver)
    async with AsyncExitStack() as held:
        assert sum([await take_all(held, pool) for pool in slow]) == 2
        assert await take_all(held, calm) == 2


async def test_a_connection_that_comes_back_goes_to_who_waits() -> None:
    shared, driver = SharedPool(size=1), Driver()
    first, second = await attach(shared, driver), await attach(shared, driver)

    async def use(pool: Pool) -> None:
        async with pool.acquire(timeout=WITHIN):
            pass

    async with first.acquire(timeout=WITHIN):
        waiting = asyncio.create_task(use(second))
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, WITHIN)
    async with first.acquire(timeout=WITHIN):
        gone = asyncio.create_task(use(second))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    await asyncio.wait_for(use(second), WITHIN)  # who left takes nothing along


async def test_the_connections_close_with_the_last_store_and_open_anew() -> None:
    shared, driver = SharedPool(size=3), Driver()
    first, second = await attach(shared, driver), await attach(shared, driver)
    await first.close()
    assert not any(one.is_closed for one in driver.opened)
    await second.close()
    assert all(one.is_closed for one in driver.opened)
    async with (await attach(shared, driver)).acquire(timeout=WITHIN):
        assert len(driver.opened) == 6
