"""The pool of connections, the settings that pin their plans, and the mapping of driver errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pillarbox.errors import PillarboxError, SchemaMissing, StoreError, StoreUnavailable
from pillarbox.stores.postgres.driver import Connection, Driver, DriverName, Pool, Refusal, load_driver

__all__ = ["SESSION_SETTINGS", "Database", "Now", "Pooler", "map_errors"]

Pooler = Literal["none", "transaction"]
"""A pooler between the store and the server. `transaction`: nothing of a session survives its transaction."""

Now: TypeAlias = Callable[[], datetime | None]
"""Returns the injected clock's time, or None: then a statement takes the server's."""

# Planner statistics do not see dead rows, so under churn the planner leaves the one good plan: it is pinned here. A
# disabled sort counts as hugely expensive, which hides the real costs and would start the JIT compiler. So the hot
# statements contain no sort, and the compiler is off.
_PINS: Final = (
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
)
_RELAXED: Final = (("synchronous_commit", "off"),)
# The fence takes a lock and then reads what the lock's last holder wrote: one snapshot for the whole transaction would
# hide that. A relay that freezes in a transaction must not keep its locks: other relays wait to take its lanes over.
_ISOLATED: Final = (
    ("default_transaction_isolation", "'read committed'"),
    ("idle_in_transaction_session_timeout", "10000"),
)

SESSION_SETTINGS: Final = "; ".join(f"set {name} = {value}" for name, value in _PINS + _RELAXED + _ISOLATED)
"""Sets a direct connection up, for as long as it lives."""
_PIN: Final = "; ".join(f"set local {name} = {value}" for name, value in _PINS)
_PIN_RELAXED: Final = "; ".join(f"set local {name} = {value}" for name, value in _PINS + _RELAXED)
# The compiler stays off: compiling a query takes longer than answering it.
_UNPIN: Final = "; ".join(f"set local {name} = default" for name, _ in _PINS if name != "jit")
_NO_JIT: Final = "set local jit = off"
_DURABLE: Final = "set local synchronous_commit = default"

_TRANSIENT: Final = ("08", "57", "53", "40", "55P03", "25006")
"""SQLSTATE prefixes of errors that pass: connection, shutdown, resources, conflicts, lock timeout, a standby."""


class Database:
    """A small pool, and the four ways in which the store uses it: `quick`, `durable`, `unpinned` and `snapshot`."""

    def __init__(
        self,
        url: str,
        *,
        driver: DriverName | None = None,
        pooler: Pooler = "none",
        connections: int = 4,
        timeout: timedelta,
    ) -> None:
        self.driver: Final = load_driver(driver)
        self._url = url
        self._pooled = pooler == "transaction"
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._pool: Pool | None = None
        self.session: object = None
        """Changes with each new connection, and ends older cursors: a failover can take the sequence of ids back."""

    async def open(self) -> None:
        with map_errors(self.driver):
            self._pool = await self.driver.create_pool(
                self._url,
                size=self._connections,
                timeout=self._timeout,
                on_connect=self._set_up,
                is_direct=not self._pooled,
            )

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def quick(self) -> AsyncIterator[Connection]:
        """Lend a connection for hot statements: pinned plans, one implicit transaction each.

        A crash of the server may take the last of them back, which costs a repeat.
        """
        async with self._borrow() as connection:
            if not self._pooled:
                yield connection
                return
            async with _transaction(connection):
                await connection.execute(_PIN_RELAXED)
                yield connection

    @asynccontextmanager
    async def durable(self) -> AsyncIterator[Connection]:
        """Open one transaction that survives a crash of the server, with pinned plans."""
        async with self._borrow() as connection, _transaction(connection):
            await connection.execute(_PIN if self._pooled else _DURABLE)
            yield connection

    @asynccontextmanager
    async def unpinned(self) -> AsyncIterator[Connection]:
        """Open one durable transaction in which the planner chooses freely: for queries and actions of people."""
        async with self._borrow() as connection, _transaction(connection):
            await connection.execute(_NO_JIT if self._pooled else f"{_UNPIN}; {_DURABLE}")
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open one read-only snapshot for several statements, in which the planner chooses freely."""
        async with (
            self._borrow() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(_NO_JIT if self._pooled else _UNPIN)
            yield connection

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        with map_errors(self.driver):
            if self._pool is None:
                raise StoreUnavailable("The PostgreSQL store is not open; call open() first.")
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection

    async def _set_up(self, connection: Connection) -> None:
        self.session = object()
        if not self._pooled:
            await connection.execute(SESSION_SETTINGS)


def _transaction(connection: Connection) -> AbstractAsyncContextManager[object]:
    return connection.transaction(isolation="read_committed")


@contextmanager
def map_errors(driver: Driver) -> Iterator[None]:
    """Map the driver's errors to store errors, with the cause kept. No URL and no password is repeated.

    A cancelled task stays cancelled, even if the driver raises that the server is gone instead.
    """
    cancels = _count_cancels()
    try:
        yield
    except PillarboxError:
        raise
    except driver.errors as error:
        if _count_cancels() > cancels:
            raise asyncio.CancelledError from error
        refusal = driver.parse_refusal(error)
        raise (_map_unreachable(error) if refusal is None else _map_refusal(refusal)) from error


def _count_cancels() -> int:
    """Count the pending requests to cancel the running task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _map_unreachable(error: Exception) -> StoreError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreUnavailable(
        f"PostgreSQL cannot be reached ({reason}): check that it runs, and the URL's host and port."
    )


def _map_refusal(refusal: Refusal) -> StoreError:
    state, message = refusal.state, refusal.message
    if state == "42P01":
        return SchemaMissing(f"A table is missing ({message}): run `pillarbox schema install`.")
    if state.startswith("28"):
        return StoreUnavailable(f"PostgreSQL refused the login ({message}): check the URL's user and password.")
    if state == "3D000":
        return StoreUnavailable(f"PostgreSQL is there, but {message}: create it or correct the URL.")
    if state.startswith(_TRANSIENT):
        return StoreUnavailable(f"PostgreSQL is not able to answer now ({message}): it will be tried again.")
    if state == "42501":
        return StoreError(f"PostgreSQL refused it ({message}): see `pillarbox schema grants`.")
    return StoreError(
        f"PostgreSQL refused it ({state}: {message})." if state else f"PostgreSQL refused it ({message})."
    )
