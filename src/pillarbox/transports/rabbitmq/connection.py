"""One connection to the broker: handshake, heartbeats, and the frames in and out. Knows nothing of messages."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from importlib.metadata import version
from typing import Final, Protocol, Self

import msgspec

from pillarbox.transports.endpoints import Login
from pillarbox.transports.rabbitmq import frames
from pillarbox.transports.rabbitmq.endings import Broken, Closed, Ended
from pillarbox.transports.rabbitmq.methods import FieldTable, Frame, commands, expected, packed, unpacked
from pillarbox.transports.rabbitmq.reasons import said

__all__ = ["Connection", "Listener", "Place"]

_CHUNK: Final = 256 * 1024
_HEARTBEAT: Final = 30
"""Seconds, if the broker agrees: after twice as long without a byte the connection is given up."""
_FRAME_MAX: Final = 128 * 1024
_GOODBYE: Final = 1.0
_CAPABILITIES: Final = ("publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect to, and as whom."""

    host: str
    port: int
    vhost: str
    login: Login
    mechanism: str = "PLAIN"
    tls: ssl.SSLContext | None = None

    @property
    def response(self) -> str:
        return f"\0{self.login.user}\0{self.login.password}" if self.mechanism == "PLAIN" else ""


class Listener(Protocol):
    """Whoever uses a channel."""

    def received(self, kind: int, payload: bytes) -> None:
        """A frame of this channel."""

    def ended(self, reason: Ended) -> None:
        """The connection is no more."""


class Connection:
    """A connection that is up until `reason` says why it is not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._listeners: dict[int, Listener] = {}
        self._waiting: asyncio.Future[Frame] | None = None
        self._loop = asyncio.get_running_loop()
        self._beat: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self.frame_max = _FRAME_MAX
        self.reason: Ended | None = None
        self.blocked: str | None = None
        """Why the broker takes no messages at present: it is short of memory or disk."""
        self._heard_at = self._loop.time()

    @classmethod
    async def opened(cls, place: Place) -> Self:
        """Connect and log in. `OSError` when nobody is there, `Ended` when the broker does not want us."""
        name = place.host if place.tls is not None else None
        reader, writer = await asyncio.open_connection(
            place.host, place.port, ssl=place.tls, server_hostname=name, limit=_CHUNK
        )
        connection = cls(reader, writer)
        try:
            await connection._shake_hands(place)
        except BaseException:
            connection.abort("the handshake failed")
            raise
        return connection

    # --- for channels ---

    def listen(self, channel: int, listener: Listener) -> None:
        """Hand this channel's frames to the listener."""
        self._listeners[channel] = listener

    def unlisten(self, channel: int) -> None:
        """Ignore this channel's frames."""
        self._listeners.pop(channel, None)

    def free_channel(self) -> int:
        """A number that nobody uses, above the one for publishing."""
        return next(number for number in range(2, 65_536) if number not in self._listeners)

    def write(self, data: bytes) -> None:
        """Send; `Ended` when that is over."""
        if self.reason is not None:
            raise self.reason
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the network has taken most of what was written."""
        with contextlib.suppress(OSError):  # told by `ended`, with what was under way
            await self._writer.drain()

    # --- the end ---

    async def close(self) -> None:
        """Say goodbye, without waiting long for the answer, and hang up."""
        if self.reason is None:
            goodbye = commands.Connection.Close(200, "goodbye", 0, 0)
            with contextlib.suppress(Ended, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._call(packed(0, goodbye))
        self.abort("it was closed")
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def abort(self, reason: str) -> None:
        """Hang up at once."""
        self._end(Broken(reason))
        self._writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()

    def _end(self, reason: Ended) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        if self._beat is not None:
            self._beat.cancel()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(reason)
        for listener in list(self._listeners.values()):
            listener.ended(reason)
        self._listeners.clear()

    # --- handshake ---

    async def _shake_hands(self, place: Place) -> None:
        self._reading = asyncio.create_task(self._read())
        start = await self._call(frames.GREETING)
        expected(start, commands.Connection.Start)
        properties: FieldTable = {"product": "pillarbox", "version": version("pillarbox")}
        properties["capabilities"] = dict.fromkeys(_CAPABILITIES, True)
        proof = commands.Connection.StartOk(properties, place.mechanism, place.response)
        tune = expected(await self._call(packed(0, proof)), commands.Connection.Tune)
        self.frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        seconds = min(tune.heartbeat or _HEARTBEAT, _HEARTBEAT)
        agreed = commands.Connection.TuneOk(tune.channel_max, self.frame_max, seconds)
        opened = await self._call(packed(0, agreed) + frames.open_vhost(place.vhost))
        expected(opened, commands.Connection.OpenOk)
        self._keep_alive(seconds)

    async def _call(self, data: bytes) -> Frame:
        """Send on channel 0 and wait for the answer."""
        self._waiting = self._loop.create_future()
        try:
            self.write(data)
            return await self._waiting
        finally:
            self._waiting = None

    def _keep_alive(self, seconds: int) -> None:
        """Send a sign of life twice per interval, and give up on a broker that sends none for two of them."""
        if self._loop.time() - self._heard_at > 2 * seconds:
            self.abort(f"it sent nothing for {2 * seconds} s")
        if self.reason is None:
            self._writer.write(frames.SIGN_OF_LIFE)
            self._beat = self._loop.call_later(seconds / 2, self._keep_alive, seconds)

    # --- reading ---

    async def _read(self) -> None:
        reason: Ended = Broken("the broker hung up")
        try:
            while chunk := await self._reader.read(_CHUNK):
                self._heard_at = self._loop.time()
                self._buffer += chunk
                for kind, channel, payload in frames.split(self._buffer):
                    self._received(kind, channel, payload)
        except OSError as error:
            reason = Broken(said(error))
        except frames.NotAmqp as error:
            reason = Broken(str(error))
        finally:
            self._end(reason)
            self._writer.close()

    def _received(self, kind: int, channel: int, payload: bytes) -> None:
        if channel == 0:
            if kind == frames.METHOD:
                self._received_here(unpacked(payload))
        elif (listener := self._listeners.get(channel)) is not None:
            listener.received(kind, payload)

    def _received_here(self, frame: Frame) -> None:
        if isinstance(frame, commands.Connection.Close):
            self._writer.write(packed(0, commands.Connection.CloseOk()))
            self._end(Closed(frame.reply_code or 0, frame.reply_text or ""))
        elif isinstance(frame, commands.Connection.Blocked):
            self.blocked = frame.reason or "no reason given"
        elif isinstance(frame, commands.Connection.Unblocked):
            self.blocked = None
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(frame)
