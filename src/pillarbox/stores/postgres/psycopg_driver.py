"""psycopg 3, for installations without asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import unquote
from uuid import UUID
from weakref import WeakSet

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import wait_async

from pillarbox.errors import ConfigError
from pillarbox.hosts import HostList, connect_first
from pillarbox.stores.liveness import KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, SEND_TIMEOUT
from pillarbox.stores.postgres.driver import (
    Connection,
    Isolation,
    OnConnect,
    OnNotification,
    Pool,
    Refusal,
    Settings,
    decode_time,
    list_servers,
)
from pillarbox.stores.tls import SYSTEM_AUTHORITIES, find_authorities, secure_postgres_url

__all__ = ["PsycopgConnection", "PsycopgDriver", "PsycopgPool", "to_literal"]

_ERRORS: Final[tuple[type[Exception], ...]] = (psycopg.Error, OSError, TimeoutError)
_KEEPALIVE: Final = {
    "keepalives_idle": KEEPALIVE_IDLE,
    "keepalives_interval": KEEPALIVE_INTERVAL,
    "keepalives_count": KEEPALIVE_COUNT,
    "tcp_user_timeout": int(SEND_TIMEOUT * 1000),
}
_MAX_PREPARED: Final = 200
"""The number of statements that a direct connection keeps prepared."""
_WAIT_INTERVAL: Final = 0.1
"""Seconds between two checks of psycopg whether its wait was interrupted."""

# libpq reports a refused login without a SQLSTATE, in words alone.
_LOGIN_REFUSALS: Final = (
    ("28P01", re.compile(r"password authentication failed|no password supplied")),
    ("28000", re.compile(r"no pg_hba\.conf entry|role \".*\" (does not exist|is not permitted)")),
    ("3D000", re.compile(r"database \".*\" does not exist")),
    ("53300", re.compile(r"too many (clients|connections)|remaining connection slots")),
    ("08P01", re.compile(r"unsupported startup parameter[^\n]*")),
    ("57P03", re.compile(r"the database system is (starting up|shutting down|not yet accepting|not accepting)")),
)
_FATAL: Final = re.compile(r"FATAL:\s+(.+)")

_T = TypeVar("_T")


class PsycopgDriver:
    """`Driver` on psycopg."""

    errors: ClassVar[tuple[type[Exception], ...]] = _ERRORS

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        servers = list_servers(secure_postgres_url(url))
        return await _connect(servers, timeout=timeout, command_timeout=command_timeout, is_direct=False)

    async def create_pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        on_connect: OnConnect | None = None,
        settings: Settings | None = (),
    ) -> Pool:
        servers = list_servers(secure_postgres_url(url))

        async def connect() -> PsycopgConnection:
            connection = await _connect(
                servers,
                timeout=timeout,
                command_timeout=timeout,
                is_direct=settings is not None,
                settings=settings or (),
            )
            try:
                if on_connect is not None:
                    await on_connect(connection)
            except BaseException:
                await connection.close()
                raise
            return connection

        pool = PsycopgPool(connect, size=size)
        await pool.fill()
        return pool

    def parse_refusal(self, error: Exception) -> Refusal | None:
        if not isinstance(error, psycopg.Error):
            return None
        if error.sqlstate is not None:
            return Refusal(error.sqlstate, error.diag.message_primary or _first_line(error))
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return _parse_login_refusal(str(error))
        # A value that no parameter of that type can have, such as a text with a NUL.
        return Refusal("22000" if isinstance(error, psycopg.DataError) else "", _first_line(error))

    def abort(self, connection: Any) -> None:
        connection.abort()

    def unwrap(self, connection: Any) -> Any:
        return connection.raw


async def _connect(
    servers: HostList[str],
    *,
    timeout: float,
    command_timeout: float | None,
    is_direct: bool,
    settings: Settings = (),
) -> PsycopgConnection:
    own = (("timezone", "UTC"), *settings) if is_direct else settings

    async def connect(url: str, seconds: float) -> _RawConnection:
        async with asyncio.timeout(seconds):
            return await _RawConnection.connect(
                _to_conninfo(url, own), autocommit=True, prepare_threshold=0 if is_direct else None, context=_ADAPTERS
            )

    raw = await connect_first(servers, connect, seconds=timeout, errors=_ERRORS)
    raw.command_timeout = command_timeout
    raw.prepared_max = _MAX_PREPARED
    return PsycopgConnection(raw, is_direct=is_direct)


def _to_conninfo(url: str, settings: Settings = ()) -> str:
    """Convert a URL to libpq's conninfo, which takes a search path as a setting and not as a parameter."""
    address, _, query = secure_postgres_url(url).partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    search_path = unquote(pairs.pop("search_path", ""))
    try:
        known = conninfo_to_dict(f"{address}?{'&'.join(f'{name}={value}' for name, value in pairs.items())}")
    except psycopg.ProgrammingError:  # its text quotes what it could not parse, which may be the password
        raise ConfigError(
            "The PostgreSQL URL cannot be read by psycopg: write special characters in the user, the password and "
            "the options as %XX."
        ) from None
    if known.get("sslrootcert") == SYSTEM_AUTHORITIES:
        known["sslrootcert"] = find_authorities() or SYSTEM_AUTHORITIES
    known = {**_KEEPALIVE, **known}
    for name, value in (*settings, *((("search_path", search_path),) if search_path else ())):
        escaped = re.sub(r"([\\\s])", r"\\\1", value)
        known["options"] = f"{known.get('options', '')} -c {name}={escaped}".strip()
    return make_conninfo("", **known)


def _parse_login_refusal(text: str) -> Refusal | None:
    fatal = _FATAL.search(text)
    for state, words in _LOGIN_REFUSALS:
        if (match := words.search(text)) is not None:
            return Refusal(state, match[0] if fatal is None else fatal[1])
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class PsycopgPool:
    """`Pool` of as many slots as connections. A lost connection leaves its slot empty; the next borrower connects.

    psycopg's own pool is another package, and replaces lost connections in the background.
    """

    def __init__(self, connect: Callable[[], Awaitable[PsycopgConnection]], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._slots: asyncio.LifoQueue[PsycopgConnection | None] = asyncio.LifoQueue()
        self._connections: WeakSet[PsycopgConnection] = WeakSet()

    async def fill(self) -> None:
        """Connect all of them, or none."""
        try:
            for _ in range(self._size):
                self._slots.put_nowait(await self._open())
        except BaseException:
            while not self._slots.empty():
                await _close(self._slots.get_nowait())
            raise

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[PsycopgConnection]:
        async with asyncio.timeout(timeout):
            connection = await self._reconnect_if_lost(await self._slots.get())
        try:
            yield connection
        finally:
            self._slots.put_nowait(connection)

    async def _reconnect_if_lost(self, connection: PsycopgConnection | None) -> PsycopgConnection:
        if connection is not None and connection.is_idle() and connection.is_quiet():
            return connection
        try:
            await _close(connection)
            return await self._open()
        except BaseException:
            self._slots.put_nowait(None)
            raise

    async def _open(self) -> PsycopgConnection:
        connection = await self._connect()
        self._connections.add(connection)
        return connection

    async def close(self) -> None:
        for _ in range(self._size):
            await _close(await self._slots.get())

    def abort(self) -> None:
        # The next borrower finds the word of its end on the socket, and connects anew.
        for connection in self._connections:
            connection.abort()


async def _close(connection: PsycopgConnection | None) -> None:
    if connection is not None:
        await connection.close()


class PsycopgConnection:
    """`Connection` over psycopg's.

    Times come in UTC: by a setting of the session, or of each transaction where no session setting would last.
    """

    def __init__(self, raw: _RawConnection, *, is_direct: bool) -> None:
        self.raw = raw
        self._is_direct = is_direct
        self._on_notification: OnNotification | None = None
        self._watched_socket: int | None = None

    async def fetch(self, query: str, *values: object) -> Sequence[Any]:
        return await (await self._execute(query, values)).fetchall()

    async def fetchrow(self, query: str, *values: object) -> Any:
        return await (await self._execute(query, values)).fetchone()

    async def fetchval(self, query: str, *values: object) -> Any:
        row = await self.fetchrow(query, *values)
        return None if row is None else row[0]

    async def execute(self, query: str, *values: object) -> str:
        return (await self._execute(query, values, is_script=not values)).statusmessage or ""

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation, readonly: bool = False) -> AsyncIterator[None]:
        begin = f"begin isolation level {isolation.replace('_', ' ')}{' read only' if readonly else ''}"
        await self.execute(begin if self._is_direct else f"{begin}; set local timezone = 'UTC'")
        try:
            yield
        except BaseException:
            with contextlib.suppress(*_ERRORS):  # the pool does not lend a connection that is still in a transaction
                await self.execute("rollback")
            raise
        await self.execute("commit")

    async def add_listener(self, channel: str, on_notification: OnNotification) -> None:
        self._on_notification = on_notification
        self.raw.add_notify_handler(lambda note: on_notification(self, note.pid, note.channel, note.payload))
        await self.execute(f'listen "{channel}"')

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ARG002 - it waits for nothing
        self._stop_watching()
        await self.raw.close()

    def abort(self) -> None:
        """Shut the socket down. libpq then reads its end, as if the server had hung up."""
        if not self.raw.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.raw.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def is_idle(self) -> bool:
        """Return whether it is open and in no transaction."""
        return not self.raw.closed and self.raw.pgconn.transaction_status == TransactionStatus.IDLE

    def is_quiet(self) -> bool:
        """Return whether nothing came since the last answer. A server that goes away sends a word, or hangs up."""
        poller = select.poll()
        poller.register(self.raw.fileno(), select.POLLIN)
        return not poller.poll(0)

    async def _execute(self, query: str, values: Sequence[object], *, is_script: bool = False) -> AsyncRawCursor[Any]:
        parameters = None if is_script else [to_literal(value) for value in values]
        cursor = AsyncRawCursor(self.raw, row_factory=tuple_row)
        self._stop_watching()
        try:
            return await cursor.execute(
                query.encode(), parameters, prepare=False if is_script else None, binary=not is_script
            )
        except psycopg.errors.FeatureNotSupported:
            # A table changed after its statement was prepared: the next connection prepares it anew.
            await self.close()
            raise
        finally:
            self._watch_for_notifications()

    # --- notifications: psycopg reads them while a statement runs, this class reads them in between ---

    def _watch_for_notifications(self) -> None:
        if self._on_notification is not None and not self.raw.closed:
            self._watched_socket = self.raw.fileno()
            asyncio.get_running_loop().add_reader(self._watched_socket, self._read_notifications)

    def _stop_watching(self) -> None:
        if self._watched_socket is not None:
            watched, self._watched_socket = self._watched_socket, None
            asyncio.get_running_loop().remove_reader(watched)

    def _read_notifications(self) -> None:
        try:
            self.raw.pgconn.consume_input()
        except psycopg.OperationalError:
            # A closed socket is always readable: watching on would spin. The next statement raises the reason.
            self._stop_watching()
            return
        while self._on_notification is not None and (note := self.raw.pgconn.notifies()) is not None:
            self._on_notification(self, note.be_pid, note.relname.decode(), note.extra.decode())


class _RawConnection(AsyncConnection[Any]):
    """A connection that is given up together with a statement that was cancelled or timed out on it.

    psycopg would ask the server to cancel the statement and wait for the answer, which never comes from one that hangs.
    """

    command_timeout: float | None = None

    async def wait(self, gen: PQGen[_T], *_: Any, **__: Any) -> _T:
        try:
            async with asyncio.timeout(self.command_timeout):
                return await wait_async(gen, self.pgconn.socket, interval=_WAIT_INTERVAL)
        except TimeoutError:
            self.pgconn.finish()
            raise TimeoutError(f"no answer within {self.command_timeout:g} s") from None
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


# --- values ---


class _JsonText(Loader):
    """JSON as text, undecoded: the store has a faster decoder. The first byte is the version of the format."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]


class _Time(Loader):
    """Times in UTC; None for one that is out of range, for which psycopg would raise."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime | None:
        return decode_time(int.from_bytes(data, signed=True))


_ADAPTERS: Final = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_loader("jsonb", _JsonText)
_ADAPTERS.register_loader("timestamptz", _Time)


_BARE: Final = (int, UUID)


def to_literal(value: object) -> str | None:
    """Convert a parameter to text, and None to null; the server converts it to the type that the statement expects."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case bytes():
            return f"\\x{value.hex()}"
        case timedelta():
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case list() | tuple():
            return _to_array(value)
    raise TypeError(f"A {type(value).__name__} is not among the values that the store passes.")


def _to_array(values: Sequence[object]) -> str:
    if all(type(value) in _BARE for value in values):  # ids, a thousand at a time: they need no quotes
        return f"{{{','.join(map(str, values))}}}"
    return f"{{{','.join(_to_element(to_literal(value)) for value in values)}}}"


def _to_element(text: str | None) -> str:
    if text is None:
        return "null"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
