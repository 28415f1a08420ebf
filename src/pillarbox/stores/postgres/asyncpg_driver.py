"""asyncpg: the store uses its connections and pools as they are."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Final
from urllib.parse import quote
from weakref import WeakSet

import asyncpg

from pillarbox.hosts import connect_first
from pillarbox.stores.liveness import set_keepalive
from pillarbox.stores.postgres.driver import (
    EPOCH,
    Connection,
    OnConnect,
    Pool,
    Refusal,
    Settings,
    encode_time,
    list_servers,
)
from pillarbox.stores.tls import SYSTEM_AUTHORITIES, check_certificate_files, find_authorities, secure_postgres_url

__all__ = ["AsyncpgDriver"]

_MAX_PREPARED: Final = 500
"""The number of statements that a direct connection keeps prepared. A shared one has those of many schemas."""


_BUILT_IN: Final = 10_000
"""Types with lower ids are the same on every server."""
_ARRAYS: Final = "select " + ", ".join(
    f"null::{name}[]" for name in ("bool", "int2", "int4", "int8", "interval", "text", "timestamptz", "uuid", "xid8")
)
_array_types: dict[int, Any] = {}
"""Built-in array types, as asyncpg describes them to itself."""


class _Connection(asyncpg.Connection):
    """Keeps its settings when it goes back to the pool: a reset would cost a round trip and unpin the plans.

    Array types are looked up once, not on every connection: the lookup takes the server longer than all other work of a
    new connection. asyncpg has no setting for that. Should it ask in another way some day, it only asks more often.
    """

    def __init__(self, protocol: Any, transport: Any, *values: Any, **options: Any) -> None:
        super().__init__(protocol, transport, *values, **options)
        set_keepalive(transport.get_extra_info("socket"))

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:
        oids = list(typeoids)
        if _array_types.keys() >= set(oids):
            return [_array_types[oid] for oid in oids], _Remembered
        types, statement = await super()._introspect_types(oids, timeout)  # type: ignore[misc]
        _array_types.update({row["oid"]: row for row in types if row["elemtype"] and row["oid"] < _BUILT_IN})
        return types, statement


class _Remembered:
    """Stands for the statement of a lookup that was not needed."""

    name: ClassVar = "remembered"


class AsyncpgPool:
    """`Pool` over asyncpg's, which cannot drop its connections and go on."""

    def __init__(self, pool: Any, connections: WeakSet[_Connection]) -> None:
        self._pool = pool
        self._connections = connections

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Any]:
        lent: AbstractAsyncContextManager[Any] = self._pool.acquire(timeout=timeout)
        return lent

    async def close(self) -> None:
        await self._pool.close()

    def abort(self) -> None:
        for connection in list(self._connections):
            if not connection.is_closed():
                connection.terminate()


class AsyncpgDriver:
    """`Driver` on asyncpg."""

    errors: ClassVar[tuple[type[Exception], ...]] = (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
    )

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        dsn, tls = _secure(url)
        connect = self._make_connect(dsn)
        connection: Connection = await connect(
            ssl=tls,
            timeout=timeout,
            command_timeout=command_timeout,
            statement_cache_size=0,
            connection_class=_Connection,
        )
        return connection

    def _make_connect(self, dsn: str) -> Callable[..., Awaitable[Any]]:
        """Return what connects to the first server of the URL that accepts. It remembers which ones failed."""
        servers = list_servers(dsn)

        async def connect(*_: object, timeout: float, **options: Any) -> Any:
            return await connect_first(
                servers,
                lambda url, seconds: asyncpg.connect(url, timeout=seconds, **options),
                seconds=timeout,
                errors=self.errors,
            )

        return connect

    async def create_pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        on_connect: OnConnect | None = None,
        settings: Settings | None = (),
    ) -> Pool:
        connections: WeakSet[_Connection] = WeakSet()

        class Registered(_Connection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                connections.add(self)

        async def set_up(connection: Any) -> None:
            await connection.set_type_codec(
                "timestamptz",
                schema="pg_catalog",
                encoder=lambda at: (encode_time(at),),
                decoder=_decode_time,
                format="tuple",
            )
            if not _array_types:
                await connection.fetchrow(_ARRAYS)
            if on_connect is not None:
                await on_connect(connection)

        dsn, tls = _secure(url)
        pool: Any = await asyncpg.create_pool(  # type: ignore[call-overload]
            dsn,
            connect=self._make_connect(dsn),
            ssl=tls,
            **_choose_pool_size(size),
            max_size=size,
            connection_class=Registered,
            init=set_up,
            timeout=timeout,
            command_timeout=timeout,
            statement_cache_size=0 if settings is None else _MAX_PREPARED,
            server_settings=dict(settings or ()),
            max_inactive_connection_lifetime=0,
        )
        return AsyncpgPool(pool, connections)

    def parse_refusal(self, error: Exception) -> Refusal | None:
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            return Refusal("22000", str(error).partition("\n")[0])  # a value that no parameter of that type can have
        if not isinstance(error, asyncpg.PostgresError):
            return None
        return Refusal(error.sqlstate or "", str(error).partition("\n")[0])

    def abort(self, connection: Any) -> None:
        with suppress(asyncpg.InterfaceError):  # another drop has taken it out of its pool already
            connection.terminate()

    def unwrap(self, connection: Any) -> Any:
        return connection


@lru_cache(maxsize=1_024)
def _decode_time(stored: tuple[int]) -> datetime | None:
    """Do as `decode_time` does, without another call: several times of every message pass here.

    A fresh message has the same time twice, and messages that were written together share them.
    """
    try:
        return EPOCH + timedelta(0, 0, stored[0])
    except OverflowError:
        return None


_SYSTEM_AUTHORITIES: Final = f"sslrootcert={SYSTEM_AUTHORITIES}"


def _choose_pool_size(size: int) -> dict[str, int]:
    """Return how many connections to open at first. A pool that restores them logs a stack trace each time."""
    if "init_size" in inspect.signature(asyncpg.create_pool).parameters:
        return {"min_size": 0, "init_size": size}
    return {"min_size": size}


def _secure(url: str) -> tuple[str, ssl.SSLContext | None]:
    """Return the URL and the context for asyncpg, which reads authorities from a file alone."""
    url = secure_postgres_url(url)
    check_certificate_files(url)
    address, _, query = url.partition("?")
    pairs = query.split("&")
    if _SYSTEM_AUTHORITIES not in pairs:
        return url, None
    pairs.remove(_SYSTEM_AUTHORITIES)
    file = find_authorities()
    if file is not None:
        pairs.append(f"sslrootcert={quote(file, safe='')}")
    return f"{address}?{'&'.join(pairs)}", ssl.create_default_context() if file is None else None
