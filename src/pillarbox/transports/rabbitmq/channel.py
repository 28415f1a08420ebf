"""A channel of a connection: questions, one at a time, and their answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Self

from pillarbox.transports.rabbitmq import frames
from pillarbox.transports.rabbitmq.connection import Connection
from pillarbox.transports.rabbitmq.endings import Broken, Closed, Ended
from pillarbox.transports.rabbitmq.methods import Frame, commands, expected, packed, unpacked

__all__ = ["Channel"]

_GOODBYE: Final = commands.Channel.Close(200, "done", 0, 0)


class Channel:
    """Open until `reason` says why it is not: `Closed` by the broker, or `Broken` with its connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.reason: Ended | None = None
        self._waiting: asyncio.Future[Frame] | None = None

    @classmethod
    async def opened(cls, connection: Connection, number: int | None = None) -> Self:
        """A new channel, with this number or a free one."""
        channel = cls(connection, connection.free_channel() if number is None else number)
        connection.listen(channel.number, channel)
        try:
            expected(await channel.ask(commands.Channel.Open()), commands.Channel.OpenOk)
        except BaseException:
            channel.abandon()
            raise
        return channel

    async def ask(self, question: Frame | bytes) -> Frame:
        """Send a method and wait for the answer; `Ended` when there is none."""
        if self.reason is not None:
            raise self.reason
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            self.connection.write(question if isinstance(question, bytes) else packed(self.number, question))
            return await self._waiting
        finally:
            self._waiting = None

    async def close(self) -> None:
        """Give the number back. A channel that is closed already stays so."""
        if self.reason is None:
            with contextlib.suppress(Ended):
                await self.ask(_GOODBYE)

    def abandon(self) -> None:
        """Close it without waiting: its number is free when the broker has agreed."""
        if self.reason is None and self.connection.reason is None:
            self.connection.write(packed(self.number, _GOODBYE))

    # --- what the connection calls ---

    def received(self, kind: int, payload: bytes) -> None:
        """A frame of this channel."""
        if kind == frames.METHOD:
            self._received_method(unpacked(payload))

    def ended(self, reason: Ended) -> None:
        """The connection is no more."""
        self._end(reason)

    def _received_method(self, frame: Frame) -> None:
        if isinstance(frame, commands.Channel.Close):
            self.connection.write(packed(self.number, commands.Channel.CloseOk()))
            self._end(Closed(frame.reply_code or 0, frame.reply_text or ""))
            return
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(frame)
        if isinstance(frame, commands.Channel.CloseOk):
            self._end(Broken("it was closed"))

    def _end(self, reason: Ended) -> None:
        if self.reason is None:
            self.reason = reason
            self.connection.unlisten(self.number)
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(reason)
