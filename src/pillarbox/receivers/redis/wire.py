"""One connection, used by a task of its own: a caller that is cancelled loses no reply and breaks nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pillarbox.transports.redis.entries import command
from pillarbox.transports.redis.link import Link as Connection
from pillarbox.transports.redis.link import LinkBroken

__all__ = ["Wire"]


class _Question(NamedTuple):
    words: tuple[str, ...]
    seconds: float
    reply: asyncio.Future[object]


class Wire:
    """Commands out, replies in, in the same order. `broke` is called with the reason when it breaks."""

    def __init__(self, connection: Connection, *, seconds: float, broke: Callable[[str], None]) -> None:
        self._connection = connection
        self._seconds = seconds
        self._broke = broke
        self._asked: deque[_Question] = deque()
        self._wake = asyncio.Event()
        self._is_over = False
        self._task = asyncio.create_task(self._run())

    async def ask(self, *words: str, blocks: float = 0.0) -> object:
        """The reply to a command, which the server may hold back for `blocks` seconds; `LinkBroken` if none comes."""
        if self._is_over:
            raise LinkBroken("it is closed")
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked.append(_Question(words, self._seconds + blocks, reply))
        self._wake.set()
        return await reply

    async def close(self) -> None:
        """Hang up at once."""
        self._end("it was closed")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._connection.close()

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._exchange()
        except (LinkBroken, TimeoutError) as error:
            self._end(str(error) or "no answer in time")

    async def _exchange(self) -> None:
        """All that was asked by now goes out at once. What is not answered stays, to be told when the end comes."""
        questions = list(self._asked)
        await self._connection.send(b"".join([command(*question.words) for question in questions]))
        for question in questions:
            async with asyncio.timeout(question.seconds):
                reply = await self._connection.reply()
            self._asked.popleft()
            if not question.reply.done():
                question.reply.set_result(reply)

    def _end(self, why: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        for question in self._asked:
            if not question.reply.done():
                question.reply.set_exception(LinkBroken(why))
        self._asked.clear()
        self._broke(why)
