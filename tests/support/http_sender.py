"""Who sends messages to an HTTP receiver: tries each again until it is taken, in order, as a relay does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pillarbox.brokers.http import HttpReceiver
from tests.support.web_server import WebServer

__all__ = ["Door", "Letter", "Sender"]

_PAUSE: Final = 0.05
_REGROUPING: Final = 1.0

Attempt = Callable[["Door"], Awaitable[bool]]


class Letter:
    """A message on its way. `attempt` sends it to a door once, and says whether it was taken."""

    def __init__(self, message_id: str, attempt: Attempt) -> None:
        self.message_id = message_id
        self.attempt = attempt
        self.attempts = 0
        self.is_under_way = False
        self.came = asyncio.Event()
        """The latest attempt reached the receiver, or failed."""


class Door:
    """A receiver, and the web server before it. Tells when a message waits for the consumer."""

    def __init__(self, receiver: HttpReceiver, *, sender: Sender) -> None:
        self.receiver = receiver
        self.server = WebServer(_Watched(self))
        self._sender = sender
        self._loop = asyncio.get_running_loop()

    def arrived(self, message_id: str) -> None:
        """From the web server's thread: the message waits for the consumer."""
        self._loop.call_soon_threadsafe(self._sender.arrived, message_id)


class _Watched:
    """The receiver's app, looked at from outside."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self._door.receiver.app
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        message_id = (headers.get(b"webhook-id") or headers.get(b"idempotency-key") or b"").decode()
        is_read = False

        async def watched() -> Any:
            nonlocal is_read
            if is_read:  # and it listens for the sender to hang up: the message is in line
                self._door.arrived(message_id)
            event = await receive()
            is_read = not event.get("more_body")
            return event

        await app(scope, watched, send)


class Sender:
    """Sends to its doors in turn. What failed together is sent again in its old order."""

    def __init__(self) -> None:
        self.doors: list[Door] = []
        self._letters: list[Letter] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = 0

    async def __aenter__(self) -> Sender:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for door in self.doors:
            await door.server.stop()
        everything = [self._running, *self._tasks]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)

    async def post(self, letter: Letter) -> None:
        """Returns when it waits for the consumer, or its first attempt failed."""
        self._letters.append(letter)
        self._changed.set()
        await letter.came.wait()

    def arrived(self, message_id: str) -> None:
        """A door has it."""
        for letter in self._letters:
            if letter.message_id == message_id:
                letter.came.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            idle = self._idle()
            if any(letter.attempts for letter in idle):
                await self._regroup()
                idle = self._idle()
            for letter in idle:
                await self._send(letter)
            if not self._idle():
                await self._changed.wait()

    def _idle(self) -> list[Letter]:
        return [letter for letter in self._letters if not letter.is_under_way]

    async def _regroup(self) -> None:
        """Let those that fail together all fail, so that none overtakes another."""
        await asyncio.sleep(_PAUSE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REGROUPING):
                while any(letter.is_under_way for letter in self._letters):
                    self._changed.clear()
                    await self._changed.wait()

    async def _send(self, letter: Letter) -> None:
        self._turn += 1
        letter.is_under_way = True
        letter.came.clear()
        task = asyncio.create_task(self._attempt(letter, self.doors[self._turn % len(self.doors)]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await letter.came.wait()

    async def _attempt(self, letter: Letter, door: Door) -> None:
        letter.attempts += 1
        taken = False
        try:
            taken = await letter.attempt(door)
        finally:
            if taken:
                self._letters.remove(letter)
            letter.is_under_way = False
            letter.came.set()
            self._changed.set()
