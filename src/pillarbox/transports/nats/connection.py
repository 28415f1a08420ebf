"""One connection to one server. When it breaks it stays broken: whoever needs another makes one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.answers import outcomes
from pillarbox.transports.nats.batches import Batch, Batches
from pillarbox.transports.nats.client import Client
from pillarbox.transports.nats.publications import Publication
from pillarbox.transports.nats.verdicts import not_allowed
from pillarbox.transports.nats.window import Window
from pillarbox.transports.redaction import one_line

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["Connection"]

_SIZE: Final = 32 * 1024 * 1024
"""Bytes under way at once, on top of the limit of messages."""


class Connection:
    """Publishes, and listens for acknowledgements on an inbox of its own."""

    def __init__(self, client: Client, *, where: str, seconds: float, window: int) -> None:
        self.client = client
        self.reason: str | None = None
        """Why it is broken; None while it stands."""
        self.is_doubted = False
        """Something was not answered in time: before it is used again, it has to prove that it lives."""
        self.first_error: Exception | None = None
        """What went wrong first. While it connects, the client itself tells only that no server is left."""
        self._where = where
        self._seconds = seconds
        self._window = Window(messages=window, size=_SIZE)
        self._batches = Batches()
        self._inbox = ""
        self._checking: asyncio.Task[None] | None = None

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes."""
        return self.client.max_payload

    async def listen(self) -> None:
        """Subscribe to the inbox, and make sure that the server lets us before the first message goes."""
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._arrived)
        await self.check()

    async def publish(self, parts: Sequence[Publication | Outcome]) -> list[Outcome]:
        """One outcome per message; what is no publication has its outcome already."""
        batch = Batch(parts, self._window)
        number = self._batches.add(batch)
        try:
            if self.reason is not None:
                batch.interrupt(self.reason)
            async with asyncio.timeout(self._seconds):
                await batch.write(self.client.write, reply=f"{self._inbox}.{number}")
                await batch.done.wait()
        except TimeoutError:
            self.is_doubted = True
        except ConnectionError as error:
            self.end(f"{type(error).__name__}")
        finally:
            self._batches.remove(number)
        late = f"{self._where} gave no answer within {self._seconds:g} s."
        return outcomes(batch.answers, late=late, under_way=batch.is_under_way)

    async def check(self) -> None:
        """Hear from the server, or break; `TransportUnavailable` when it is broken.

        Shielded from being cancelled: the client dies of an answer that nobody waits for any more.
        """
        if self.reason is None:
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(self._check())
            await asyncio.wait([self._checking])
        if self.reason is not None:
            raise TransportUnavailable(self.reason)

    async def _check(self) -> None:
        try:
            await self.client.rtt(timeout=self._seconds)  # type: ignore[arg-type]  # said to be an int, and waited for
            self.is_doubted = False
        except Exception as error:
            silent = isinstance(error, TimeoutError)
            self.end(f"no answer within {self._seconds:g} s" if silent else one_line(str(error)))
            await self.close()

    async def close(self) -> None:
        """Hang up. What is under way is interrupted."""
        self.end("it was closed")
        with contextlib.suppress(Exception):
            await self.client.close()

    def end(self, why: str) -> None:
        """Break, and tell all who wait."""
        if self.reason is None:
            self.reason = f"The connection to {self._where} broke ({why})."
            self._batches.interrupt(self.reason)
            self.client.abort()
            if self._checking is not None and self._checking is not asyncio.current_task():
                self._checking.cancel()

    # --- what the client calls ---

    async def _arrived(self, message: Msg) -> None:
        status = None if message.headers is None else message.headers.get("Status")
        self._batches.take(message.subject[len(self._inbox) + 1 :], message.data, status)

    async def failed(self, error: Exception) -> None:
        """An error that belongs to no call: a refusal, or the end."""
        self.first_error = self.first_error or error
        refusal = not_allowed(str(error))
        if refusal is None:
            return
        if refusal.action == "publish":
            self._batches.forbid(refusal)
        elif self._inbox.lower() in refusal.subject:
            self.end(
                f"NATS does not let this user listen for acknowledgements at {self._inbox.partition('.')[0]}.>: allow "
                "it, or set the option inbox"
            )

    async def closed(self) -> None:
        self.end(one_line(str(self.client.last_error or "the server hung up")))
