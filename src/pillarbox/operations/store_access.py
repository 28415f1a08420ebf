"""Calls to a store from synchronous code: commands and the Django admin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pillarbox.contracts.store import Store
from pillarbox.message import Names
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import StoreUrl

__all__ = ["run_on_store"]

T = TypeVar("T")


def run_on_store(
    url: StoreUrl, action: Callable[[Store], Awaitable[T]], *, names: Names, reads_only: bool = False
) -> T:
    """Open the store, await the action with it, close it, and return the action's result."""

    async def run() -> T:
        store = open_store(url, names=names, asks_only=True, reads_only=reads_only)
        await store.open()
        try:
            return await action(store)
        finally:
            await store.close()

    return asyncio.run(run())
