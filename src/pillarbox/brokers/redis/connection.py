"""Connections to the server: commands out, replies in. The one file that uses redis-py."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from pillarbox.brokers.errors import describe_error, login_refused_error, not_open_error, tls_error, unreachable_error
from pillarbox.brokers.redis.encoding import encode_command
from pillarbox.brokers.redis.errors import ErrorReply, is_demotion
from pillarbox.brokers.redis.settings import NAME, RedisSettings
from pillarbox.brokers.settings import Login
from pillarbox.brokers.tls import build_tls_context
from pillarbox.errors import MissingExtra, TransportUnavailable
from pillarbox.hosts import HostList, connect_first
from pillarbox.redaction import redact_line
from pillarbox.tasks import cancel_all

__all__ = ["Connection", "ConnectionBroken", "ConnectionPool", "Server", "SharedConnection", "connect"]

try:
    from redis._parsers import _AsyncRESP2Parser
    from redis.asyncio.connection import Connection as RedisConnection
    from redis.asyncio.connection import SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        AuthorizationError,
        BusyLoadingError,
        ClusterDownError,
        MasterDownError,
        MovedError,
        NoPermissionError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
    )
except ModuleNotFoundError as error:
    raise MissingExtra("redis", extra="redis", needed_for="The redis transport") from error


_DEFAULT_MAX_FIELD: Final = 512 * 1024 * 1024
"""Bytes of a field that a server takes by default."""
_IDLE: Final = 1.0
"""Seconds after which an idle connection is checked before use, so that no message is blamed for its end."""

_UNREADABLE: Final = (ValueError, TypeError, IndexError, RecursionError)
"""redis-py raises these for replies that no Redis sends: a length that is no number, lists in lists without end."""
_NOT_REDIS: Final = "it does not answer as Redis does"


class _BoundedParser(_AsyncRESP2Parser):
    """Reads no value that is announced larger than any server sends: it would fill the memory."""

    async def _read(self, length: int) -> bytes:
        if length > _DEFAULT_MAX_FIELD:
            raise ValueError(length)
        value: bytes = await super()._read(length)
        return value


class ConnectionBroken(Exception):
    """The connection has ended. The text says why."""


Host = tuple[str, int]


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server, or the sentinels that know it, with login and TLS."""

    where: str
    """The server, for people."""
    login: Login
    tls: ssl.SSLContext | None
    settings: RedisSettings
    sentinels: HostList[Host]
    """Empty where the URL names the server itself."""
    sentinel_login: Login

    @classmethod
    def from_settings(cls, settings: RedisSettings, *, environ: Mapping[str, str]) -> Server:
        """Read secrets and certificates; raise `ConfigError` for one that cannot be read."""
        hosts = ",".join(f"{host}:{port}" for host, port in settings.endpoint.hosts)
        where = f"Redis {settings.master} of the sentinels {hosts}" if settings.has_sentinels else f"Redis at {hosts}"
        password = settings.sentinel_password
        return cls(
            where=where,
            sentinels=HostList(settings.endpoint.hosts if settings.has_sentinels else ()),
            sentinel_login=Login(
                settings.sentinel_user,
                None if password is None else password.read(option="sentinel_password", environ=environ),
            ),
            login=settings.login(settings.endpoint, environ=environ),
            tls=build_tls_context(settings, transport=NAME, where=where) if settings.is_encrypted else None,
            settings=settings,
        )

    def __repr__(self) -> str:
        return f"Server({self.where!r})"


class Connection:
    """A connection in step: as many replies are read as commands were sent, or it is broken."""

    def __init__(self, connection: RedisConnection) -> None:
        self.used_at = 0.0
        self.max_field = _DEFAULT_MAX_FIELD
        """Bytes of a field that the server takes."""
        self.is_demoted = False
        """The server is no master any more, or has lost its data: the next connection may lead to another one."""
        self._connection = connection

    @property
    def is_broken(self) -> bool:
        return not self._connection.is_connected

    def send(self, commands: bytes) -> None:
        """Begin to write commands. The reply tells whether they arrived; raise `ConnectionBroken` if it is closed."""
        writer = getattr(self._connection, "_writer", None)
        if writer is None:  # redis-py would connect again, and replies would be taken for those of other commands
            raise ConnectionBroken("it is closed")
        # Nothing waits here until all is written, as redis-py does. A server that takes no message as large as this one
        # says so and closes at once: the write fails then, and the reason that came before it would never be read.
        writer.write(commands)

    async def read_reply(self) -> object:
        """Return the next reply: bytes, a number, a list, None or an `ErrorReply`; raise `ConnectionBroken` if none."""
        try:
            reply = await self._connection.read_response(disable_decoding=True)
            return reply if type(reply) is bytes else self._map_nested_errors(reply)
        except (ResponseError, AuthenticationError, BusyLoadingError) as error:
            # To redis-py the last two are errors of the connection, and it has closed it.
            return self._to_error_reply(error)
        except (RedisError, OSError) as error:
            raise ConnectionBroken(_describe_error(error)) from error
        except _UNREADABLE as error:
            await self.close()  # nobody knows where the next reply begins
            raise ConnectionBroken(_NOT_REDIS) from error

    def _map_nested_errors(self, reply: object) -> object:
        if not isinstance(reply, list):
            return reply
        return [self._to_error_reply(one) if isinstance(one, RedisError) else one for one in reply]

    def _to_error_reply(self, error: RedisError) -> ErrorReply:
        reply = _to_error_reply(error)
        self.is_demoted = self.is_demoted or is_demotion(reply)
        return reply

    async def call(self, *words: str) -> object:
        """Send one command and return its reply."""
        self.send(encode_command(*words))
        return await self.read_reply()

    async def close(self) -> None:
        """Close the socket at once, whether or not the other side still reads."""
        writer = getattr(self._connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()
        with contextlib.suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


async def connect(server: Server) -> Connection:
    """Connect and log in; raise `TransportUnavailable` when that is not possible.

    With sentinels, to the server that one of them names: each is asked until one names a server that is a master and
    accepts. A sentinel that was cut off, or a server that was master until now, is passed over.
    """
    seconds = server.settings.timeout.total_seconds()
    if not server.sentinels:
        return await _connect_to(server, server.settings.endpoint.hosts[0], seconds=seconds)

    async def connect_by(sentinel: Host, share: float) -> Connection:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + share
        master = await _ask_sentinel(server, sentinel, seconds=share)
        return await _connect_to(server, master, seconds=max(0.0, ends_at - loop.time()))

    return await connect_first(server.sentinels, connect_by, seconds=seconds, errors=TransportUnavailable)


async def _ask_sentinel(server: Server, sentinel: Host, *, seconds: float) -> Host:
    """Return the address of the master that this sentinel names."""
    where = f"The sentinel {sentinel[0]}:{sentinel[1]}"
    name = server.settings.master or ""
    driver = _build_driver_connection(server, sentinel, login=server.sentinel_login, database=0, seconds=seconds)
    connection = Connection(driver)
    try:
        async with asyncio.timeout(seconds):
            await driver.connect()  # type: ignore[no-untyped-call]
            reply = await connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
    except (RedisError, ConnectionBroken, OSError) as error:
        raise _map_connect_error(error, server, where=where, seconds=seconds) from error
    except _UNREADABLE as error:
        raise unreachable_error(where, _NOT_REDIS, check="that it is a sentinel, and the URL") from error
    finally:
        await connection.close()
    if isinstance(reply, ErrorReply):
        raise TransportUnavailable(f"{where} does not answer ({redact_line(reply)}): check that it is a sentinel.")
    if reply is None:
        raise TransportUnavailable(f"{where} knows no master {name!r}: check the name in the URL.")
    match reply:
        case [bytes(host), bytes(port)] if port.isdigit():
            return host.decode(errors="replace"), int(port)
    raise unreachable_error(where, _NOT_REDIS, check="that it is a sentinel, and the URL")


async def _connect_to(server: Server, host: Host, *, seconds: float) -> Connection:
    settings = server.settings
    driver = _build_driver_connection(server, host, login=server.login, database=settings.database, seconds=seconds)
    connection = Connection(driver)
    try:
        async with asyncio.timeout(seconds):
            await driver.connect()  # type: ignore[no-untyped-call]
            if server.sentinels and not await _is_master(connection):
                raise ConnectionBroken(f"{host[0]}:{host[1]} is not a master any more, or not yet")
            connection.max_field = settings.max_payload or await _find_max_field(connection)
    except (RedisError, ConnectionBroken, OSError) as error:  # TimeoutError is an OSError
        await connection.close()
        raise _map_connect_error(error, server, where=server.where, seconds=seconds) from error
    except _UNREADABLE as error:
        await connection.close()
        raise unreachable_error(server.where, _NOT_REDIS, check="that it is Redis, and the URL") from error
    except BaseException:
        await connection.close()
        raise
    return connection


async def _is_master(connection: Connection) -> bool:
    # Sentinels name a new master a moment before it is one. A login that may not ask finds out by what it sends.
    reply = await connection.call("ROLE")
    return not isinstance(reply, list) or reply[:1] == [b"master"]


def _build_driver_connection(
    server: Server, host: Host, *, login: Login, database: int, seconds: float
) -> RedisConnection:
    cls = RedisConnection if server.tls is None else SSLConnection
    connection = cls(
        host=host[0],
        port=host[1],
        db=database,
        username=login.user,
        password=login.password,
        client_name="pillarbox",
        protocol=2,
        parser_class=_BoundedParser,
        # It would send a failed command again, up to ten times: an entry for each.
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=seconds,
        socket_timeout=None,  # a timer for every reply would cost more than the reply; there is one for all of them
    )
    if isinstance(connection, SSLConnection):
        # Its own would trust the system's certificates beside the option ca, and ask for a key's password.
        connection.ssl_context.context = server.tls
    return connection


async def _find_max_field(connection: Connection) -> int:
    # Many servers do not allow CONFIG; then the default is assumed.
    reply = await connection.call("CONFIG", "GET", "proto-max-bulk-len")
    value = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
    return int(value) if isinstance(value, bytes) and value.isdigit() else _DEFAULT_MAX_FIELD


_CODES: Final = {
    AskError: "ASK",
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""redis-py removes these codes from the texts of the errors that it raises for them."""


def _to_error_reply(error: RedisError) -> ErrorReply:
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), None)
    return ErrorReply(str(error) if code is None else f"{code} {error}")


def _map_connect_error(error: Exception, server: Server, *, where: str, seconds: float) -> TransportUnavailable:
    cause = error.__context__ if isinstance(error.__context__, ssl.SSLError) else error
    if isinstance(cause, ssl.SSLError):
        return tls_error(where, describe_error(cause))
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return login_refused_error(where, _describe_error(error), check="user and password, and what they allow")
    if isinstance(error, BusyLoadingError):
        return TransportUnavailable(f"{where} is loading its data: wait.")
    reason = describe_error(error, seconds=seconds) if isinstance(error, TimeoutError) else _describe_error(error)
    state = "runs" if server.tls is None else "runs and speaks TLS"
    return unreachable_error(where, reason, check=f"that it {state}, and the URL")


def _describe_error(error: Exception) -> str:
    return describe_error(error).rstrip(".")


class ConnectionPool:
    """Lends connections, and opens them when none is free. One that breaks takes the idle ones with it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(server.settings.connections)
        self._is_open = False

    def open(self) -> None:
        """Allow connections. None is opened yet."""
        self._is_open = True

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        self._is_open = False
        await self._close_idle()

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Connection]:
        """Lend a connection for one batch; raise `TransportUnavailable` when none can be opened."""
        async with self._slots:
            connection = await self._acquire()
            try:
                yield connection
            finally:
                await self._release(connection)

    async def _acquire(self) -> Connection:
        self._check_open()
        while self._idle:
            connection = self._idle.pop()
            if await self._is_alive(connection):
                return connection
            await connection.close()
        connection = await connect(self._server)
        try:
            self._check_open()  # `close` may have been called while this connected
        except TransportUnavailable:
            await connection.close()
            raise
        return connection

    async def _is_alive(self, connection: Connection) -> bool:
        if asyncio.get_running_loop().time() - connection.used_at < _IDLE:
            return not connection.is_broken
        try:
            async with asyncio.timeout(self._server.settings.timeout.total_seconds()):
                return await connection.call("PING") == b"PONG"
        except (ConnectionBroken, TimeoutError):
            await self._close_idle()
            return False
        except BaseException:
            await connection.close()
            raise

    async def _release(self, connection: Connection) -> None:
        if connection.is_broken or connection.is_demoted:
            await self._close_idle()
        if connection.is_broken or connection.is_demoted or not self._is_open:
            await connection.close()
            return
        connection.used_at = asyncio.get_running_loop().time()
        self._idle.append(connection)

    async def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_open_error("redis transport")


class _Call(NamedTuple):
    words: tuple[str, ...]
    seconds: float
    reply: asyncio.Future[object]


class SharedConnection:
    """Lets several tasks call over one connection. `on_broken` is called with the reason when it breaks."""

    def __init__(self, connection: Connection, *, seconds: float, on_broken: Callable[[str], None]) -> None:
        self._connection = connection
        self._seconds = seconds
        self._on_broken = on_broken
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._is_over = False
        self._task = asyncio.create_task(self._run())

    async def call(self, *words: str, blocks: float = 0.0) -> object:
        """Return the reply to a command, which may block for `blocks` seconds; raise `ConnectionBroken` if none."""
        if self._is_over:
            raise ConnectionBroken("it is closed")
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(words, self._seconds + blocks, reply))
        self._wake.set()
        return await reply

    async def close(self) -> None:
        """Close the connection at once."""
        self._break("it was closed")
        await cancel_all([self._task])
        await self._connection.close()

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._exchange()
        except (ConnectionBroken, TimeoutError) as error:
            self._break(str(error) or "no answer in time")

    async def _exchange(self) -> None:
        """Send all calls that wait, and read their replies. A call stays in the queue until it has its reply."""
        calls = list(self._calls)
        self._connection.send(b"".join([encode_command(*call.words) for call in calls]))
        for call in calls:
            async with asyncio.timeout(call.seconds):
                reply = await self._connection.read_reply()
            self._calls.popleft()
            if not call.reply.done():
                call.reply.set_result(reply)

    def _break(self, why: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        for call in self._calls:
            if not call.reply.done():
                call.reply.set_exception(ConnectionBroken(why))
        self._calls.clear()
        self._on_broken(why)
