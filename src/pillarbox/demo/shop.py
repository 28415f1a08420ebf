"""The order service, a process of its own: commits orders with their messages, and rolls some back."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec

from pillarbox.demo.books import Book, book_at
from pillarbox.demo.story import Attempt, Story, attempts
from pillarbox.names import Names
from pillarbox.stores.urls import store_url

__all__ = ["MODULE", "arguments"]

MODULE: Final = "pillarbox.demo.shop"


def arguments(story: Story) -> list[str]:
    """What this program is given. The store comes by the environment, like any program's: it may hold a password."""
    return [msgspec.json.encode(story).decode()]


async def run(story: Story, book: Book) -> None:
    """Place all orders of the story, at its pace."""
    await book.open()
    waiting = _paced(attempts(story), pace=story.pace)
    turns = asyncio.Lock()

    async def write() -> None:
        while (attempt := await _next(waiting, turns)) is not None:
            await book.place(attempt)

    async with asyncio.TaskGroup() as writers:
        for _ in range(book.writers):
            writers.create_task(write())
    await book.close()


async def _next(waiting: AsyncIterator[Attempt], turns: asyncio.Lock) -> Attempt | None:
    async with turns:
        return await anext(waiting, None)


async def _paced(story: Iterator[Attempt], *, pace: float) -> AsyncIterator[Attempt]:
    """Not faster than the pace. What was late is made up for."""
    clock = asyncio.get_running_loop().time
    started = clock()
    for number, attempt in enumerate(story):
        await asyncio.sleep(max(0.0, started + number / pace - clock()))
        yield attempt


def main(story: str) -> None:
    environ = os.environ
    book = book_at(store_url(environ["PILLARBOX_STORE"]), names=Names(environ.get("PILLARBOX_SCHEMA")))
    asyncio.run(run(msgspec.json.decode(story, type=Story), book))


if __name__ == "__main__":
    main(*sys.argv[1:])
