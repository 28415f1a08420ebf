"""A connection to RabbitMQ and its channels, for the transport and the receiver alike."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Final, Self

import msgspec

from pillarbox.brokers.errors import connection_broken_error, describe_error
from pillarbox.brokers.rabbitmq.amqp import (
    FRAME_MAX,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    SMALLEST_FRAME_MAX,
    FieldTable,
    Frame,
    commands,
    encode,
    encode_open,
    expect,
    read_method,
    split_frames,
)
from pillarbox.brokers.rabbitmq.errors import Broken, Closed, Ended, NotAmqp, map_connect_error
from pillarbox.brokers.rabbitmq.settings import NAME, RabbitmqConnectionSettings
from pillarbox.brokers.settings import Login
from pillarbox.brokers.tls import build_tls_context
from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import HostList, connect_first
from pillarbox.progress import bound_unsent

__all__ = ["Channel", "Connection", "Connector"]

_MAX_CHANNELS: Final = 65_535
_CHUNK: Final = 256 * 1024
_HEARTBEAT: Final = 20
"""Seconds, if the broker agrees: after twice as long without a byte the connection is given up."""
_CLOSE_TIMEOUT: Final = 1.0
_CAPABILITIES: Final = (
    "publisher_confirms",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "authentication_failure_close",
)
_CLOSE_CHANNEL: Final = commands.Channel.Close(200, "done", 0, 0)


class ConnectionParameters(msgspec.Struct, frozen=True, kw_only=True):
    """One server, a virtual host there, and the login."""

    host: str
    port: int
    vhost: str
    login: Login
    mechanism: str = "PLAIN"
    tls: ssl.SSLContext | None = None

    @property
    def response(self) -> str:
        """Response to the server's request for the login."""
        return f"\0{self.login.user}\0{self.login.password}" if self.mechanism == "PLAIN" else ""


class Connection:
    """A connection to one server. It stands until `reason` is set."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._channels: dict[int, Channel] = {}
        self._reply: asyncio.Future[Frame] | None = None
        self._loop = asyncio.get_running_loop()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._received_at = self._loop.time()
        self.frame_max = FRAME_MAX
        self._channel_max = _MAX_CHANNELS
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._paused = asyncio.Event()
        self.written = 0
        """Bytes written so far."""
        self.server_version = ""
        self.server: ConnectionParameters | None = None
        self.reason: Ended | None = None
        self.blocked: str | None = None
        """Why the broker accepts no messages at present: it is short of memory or disk."""

    @classmethod
    async def open(cls, to: ConnectionParameters) -> Self:
        """Connect and log in. Raises `OSError` when no server answers, `Ended` when it refuses."""
        name = to.host if to.tls is not None else None
        reader, writer = await asyncio.open_connection(to.host, to.port, ssl=to.tls, server_hostname=name, limit=_CHUNK)
        bound_unsent(writer.get_extra_info("socket"))
        connection = cls(reader, writer)
        try:
            await connection._shake_hands(to)
        except BaseException:
            connection.abort("the handshake failed")
            raise
        return connection

    async def open_channel(self, number: int | None = None) -> Channel:
        """Open a channel with this number, or with a free one, above 1 if the broker allows more."""
        if number is None:
            number = next(self._find_free_channels(), 0)
            if not number:
                raise Broken(f"the broker allows {self._channel_max} channels, and none is free")
        channel = self._channels[number] = Channel(self, number)
        try:
            expect(await channel.call(commands.Channel.Open()), commands.Channel.OpenOk)
        except BaseException:
            channel.abandon()
            raise
        return channel

    @property
    def has_free_channel(self) -> bool:
        return next(self._find_free_channels(), 0) > 0

    def _find_free_channels(self) -> Iterator[int]:
        """Find the numbers that are free; 1 is last, because a publisher takes it."""
        return (free for free in (*range(2, self._channel_max + 1), 1) if free not in self._channels)

    def forget_channel(self, number: int) -> None:
        """Ignore this channel's frames. Its number is free."""
        self._channels.pop(number, None)

    async def call_apart(self, build: Callable[[int], bytes] | None = None) -> Closed | None:
        """Call a method over a channel of its own, or only open one; return how the broker closed it, if it did.

        `build` gets the channel's number and returns the method. The broker closes the channel of a call that it
        refuses, so that must not be one with messages on it.
        """
        channel = await self.open_channel()
        try:
            if build is not None:
                await channel.call(build(channel.number))
            await channel.close()
        except Closed as closed:
            if self.reason is not None:
                raise
            return closed
        except BaseException:
            channel.abandon()
            raise
        return None

    def write(self, data: bytes) -> None:
        """Send bytes; raise `Ended` when the connection has ended."""
        if self.reason is not None:
            raise self.reason
        self._writer.write(data)
        self.written += len(data)

    def pause_reading(self) -> None:
        """Leave what the broker sends in the network, until `resume_reading`. Heartbeats go out meanwhile."""
        self._may_read.clear()
        self._paused.set()

    def resume_reading(self) -> None:
        if self.is_paused:
            self._received_at = self._loop.time()
            self._may_read.set()
            self._paused.clear()

    async def wait_for_pause(self) -> None:
        """Wait until nothing is read."""
        await self._paused.wait()

    @property
    def is_paused(self) -> bool:
        return not self._may_read.is_set()

    def count_sent(self) -> int:
        """Return how many of the written bytes the network has taken."""
        return self.written - self._writer.transport.get_write_buffer_size()

    # --- the end ---

    async def close(self, *, seconds: float = _CLOSE_TIMEOUT) -> None:
        """Close in order, waiting so long for the broker's answer, and then in any case.

        The answer comes when the broker has read everything that was written before.
        """
        if self.reason is None:
            with contextlib.suppress(Ended, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._call(encode(0, commands.Connection.Close(200, "goodbye", 0, 0)))
        self.abort("it was closed")
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._end(Broken(reason))
        self._writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()

    def _end(self, reason: Ended) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(reason)
        for channel in list(self._channels.values()):
            channel.end(reason)
        self._channels.clear()

    # --- handshake ---

    async def _shake_hands(self, to: ConnectionParameters) -> None:
        self._reading = asyncio.create_task(self._read())
        start = expect(await self._call(PROTOCOL_HEADER), commands.Connection.Start)
        self.server_version = str((start.server_properties or {}).get("version", ""))
        properties: FieldTable = {"product": "pillarbox", "version": version("pillarbox")}
        properties["capabilities"] = dict.fromkeys(_CAPABILITIES, True)
        start_ok = commands.Connection.StartOk(properties, to.mechanism, to.response)
        tune = expect(await self._call(encode(0, start_ok)), commands.Connection.Tune)
        self.frame_max = _negotiate_frame_max(tune.frame_max or 0)
        seconds = min(tune.heartbeat or _HEARTBEAT, _HEARTBEAT)
        self._channel_max = min(tune.channel_max or _MAX_CHANNELS, _MAX_CHANNELS)
        tune_ok = commands.Connection.TuneOk(self._channel_max, self.frame_max, seconds)
        expect(await self._call(encode(0, tune_ok) + encode_open(to.vhost)), commands.Connection.OpenOk)
        self._keep_alive(seconds)

    async def _call(self, data: bytes) -> Frame:
        """Send on channel 0 and wait for the answer."""
        self._reply = self._loop.create_future()
        try:
            self.write(data)
            return await self._reply
        finally:
            self._reply = None

    def _keep_alive(self, seconds: int) -> None:
        """Send a heartbeat twice per interval, and give up a broker that sends nothing for two of them."""
        if not self.is_paused and self._loop.time() - self._received_at > 2 * seconds:
            self.abort(f"it sent nothing for {2 * seconds} s")
        if self.reason is None:
            self._writer.write(HEARTBEAT_FRAME)
            self._heartbeat = self._loop.call_later(seconds / 2, self._keep_alive, seconds)

    # --- reading ---

    async def _read(self) -> None:
        reason: Ended = Broken("the broker hung up")
        try:
            while chunk := await self._reader.read(_CHUNK):
                self._received_at = self._loop.time()
                self._buffer += chunk
                for kind, channel, payload in split_frames(self._buffer, frame_max=self.frame_max):
                    self._receive(kind, channel, payload)
                await self._may_read.wait()
        except OSError as error:
            reason = Broken(describe_error(error))
        except NotAmqp as error:
            reason = Broken(str(error))
        finally:
            self._end(reason)
            self._writer.close()

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        if number == 0:
            if kind == METHOD:
                self._receive_method(read_method(payload))
        elif (channel := self._channels.get(number)) is not None:
            channel.receive(kind, payload)

    def _receive_method(self, frame: Frame) -> None:
        if isinstance(frame, commands.Connection.Close):
            self._writer.write(encode(0, commands.Connection.CloseOk()))
            self._end(Closed(frame.reply_code or 0, frame.reply_text or ""))
        elif isinstance(frame, commands.Connection.Blocked):
            self.blocked = frame.reason or "no reason given"
        elif isinstance(frame, commands.Connection.Unblocked):
            self.blocked = None
        elif self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)


def _negotiate_frame_max(proposed: int) -> int:
    """Return the largest frame in bytes; a proposal of 0 is no limit. Raises `NotAmqp` for less than AMQP allows."""
    if 0 < proposed < SMALLEST_FRAME_MAX:
        raise NotAmqp(
            f"it wants frames of at most {proposed} bytes, and AMQP allows no limit below {SMALLEST_FRAME_MAX}"
        )
    return min(proposed or FRAME_MAX, FRAME_MAX)


class Channel:
    """A channel. It is open until `reason` is set: `Closed` by the broker, or `Broken` with its connection.

    Its owner may set `on_frame`, which gets every frame first and returns whether it took it, and `on_end`.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.reason: Ended | None = None
        self.on_frame: Callable[[int, bytes], bool] | None = None
        self.on_end: Callable[[Ended], None] | None = None
        self._reply: asyncio.Future[Frame] | None = None

    async def call(self, method: Frame | bytes) -> Frame:
        """Send a method and wait for the answer; raise `Ended` when there is none."""
        if self.reason is not None:
            raise self.reason
        self._reply = asyncio.get_running_loop().create_future()
        try:
            self.connection.write(method if isinstance(method, bytes) else encode(self.number, method))
            return await self._reply
        finally:
            self._reply = None

    async def close(self) -> None:
        """Give the number back. A channel that is closed already stays so."""
        if self.reason is None:
            with contextlib.suppress(Ended):
                await self.call(_CLOSE_CHANNEL)

    def abandon(self) -> None:
        """Close without waiting: the number is free when the broker has agreed."""
        if self.reason is None and self.connection.reason is None:
            self.connection.write(encode(self.number, _CLOSE_CHANNEL))

    def receive(self, kind: int, payload: bytes) -> None:
        """Take a frame of this channel from the connection."""
        if self.on_frame is not None and self.on_frame(kind, payload):
            return
        if kind != METHOD:
            return
        frame = read_method(payload)
        if isinstance(frame, commands.Channel.Close):
            self.connection.write(encode(self.number, commands.Channel.CloseOk()))
            self.end(Closed(frame.reply_code or 0, frame.reply_text or ""))
            return
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)
        if isinstance(frame, commands.Channel.CloseOk):
            self.end(Broken("it was closed"))

    def end(self, reason: Ended) -> None:
        """End with the connection, or as the broker closed it."""
        if self.reason is None:
            self.reason = reason
            self.connection.forget_channel(self.number)
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(reason)
            if self.on_end is not None:
                self.on_end(reason)


class Connector:
    """Finds a server of the broker, connects and logs in. Secrets are read when this is built."""

    def __init__(self, settings: RabbitmqConnectionSettings, *, environ: Mapping[str, str]) -> None:
        self.where = f"RabbitMQ at {settings.display_url}"
        self.seconds = settings.timeout.total_seconds()
        endpoint = settings.endpoint
        given = settings.login(endpoint, environ=environ)
        login = Login(given.user or "guest", given.password or ("guest" if given.user is None else ""))
        tls = build_tls_context(settings, transport=NAME, where=self.where) if settings.is_encrypted else None
        self.servers = HostList(
            [
                ConnectionParameters(
                    host=host, port=port, vhost=endpoint.path or "/", login=login, mechanism=settings.auth.upper(),
                    tls=tls,
                )
                for host, port in endpoint.hosts
            ]
        )  # fmt: skip

    async def connect(self) -> Connection:
        """Connect to the first server that accepts; raise `TransportUnavailable` if none does."""
        return await connect_first(self.servers, self._connect_to, seconds=self.seconds, errors=TransportUnavailable)

    async def _connect_to(self, server: ConnectionParameters, seconds: float) -> Connection:
        try:
            async with asyncio.timeout(seconds):
                connection = await Connection.open(server)
                connection.server = server
                return connection
        except (OSError, TimeoutError, Ended, NotAmqp) as error:
            raise map_connect_error(error, where=self.where) from error

    async def call_apart(self, connection: Connection, build: Callable[[int], bytes] | None = None) -> Closed | None:
        """Call `Connection.call_apart`; raise `TransportUnavailable` when the broker does not answer in time.

        Where the broker allows no further channel, the call has a connection of its own. Where there are other servers,
        each gets its share of the time, and one that is silent is the last to be tried: a frozen one accepts
        connections, and answers nothing.
        """
        seconds = self.seconds / len(self.servers)
        try:
            async with asyncio.timeout(seconds):
                if connection.has_free_channel:
                    return await connection.call_apart(build)
                connection = other = await self.connect()
                try:
                    return await other.call_apart(build)
                finally:
                    await other.close()
        except TimeoutError as error:
            connection.abort("it did not answer a question")
            if connection.server is not None:
                self.servers.note_failure(connection.server)
            raise TransportUnavailable(f"{self.where} did not answer within {seconds:g} s.") from error
        except (Ended, NotAmqp) as error:
            raise connection_broken_error(self.where, describe_error(error)) from error
