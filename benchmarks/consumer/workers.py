"""So many tasks that take what comes, as somebody writes it who has no consumer of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

__all__ = ["Workers"]

T = TypeVar("T")


class Workers(Generic[T]):
    """Handles what is put, `concurrency` at a time."""

    def __init__(self, handle: Callable[[T], Awaitable[None]], *, messages: int, concurrency: int) -> None:
        self._handle = handle
        self._left = messages
        self._concurrency = concurrency
        self._waiting: asyncio.Queue[T] = asyncio.Queue()
        self._done = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def put(self, message: T) -> None:
        self._waiting.put_nowait(message)

    async def room(self, limit: int) -> None:
        """Until fewer wait than that."""
        while self._waiting.qsize() >= limit:
            self._room.clear()
            await self._room.wait()

    async def done(self) -> None:
        """Until all are handled; or what went wrong with one."""
        waiting = asyncio.ensure_future(self._done.wait())
        await asyncio.wait([*self._tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            self._room.set()
            await self._handle(message)
            self._left -= 1
            if not self._left:
                self._done.set()
