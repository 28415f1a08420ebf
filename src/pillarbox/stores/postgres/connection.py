"""Connections to PostgreSQL: how they are opened, pinned, borrowed, and how their errors are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final, Literal

from pillarbox.errors import PillarboxError, SchemaMissing, StoreError, StoreUnavailable
from pillarbox.stores.postgres.drivers import Connection, Driver, DriverName, Pool, Refusal, driver_called

__all__ = ["Database", "Pooler", "mapped_errors", "pins"]

Pooler = Literal["none", "transaction"]
"""What stands between us and the server. `transaction`: nothing of a session survives its transaction."""

# Statistics do not see dead rows, so under churn the planner leaves the one good plan; it is nailed down here. A sort
# that cannot be avoided costs a fortune on paper, which hides the real costs and would set the compiler to work: the
# hot statements have none, and the compiler is off.
_PINS: Final = (
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
)
_RELAXED: Final = (("synchronous_commit", "off"),)
# The fence takes a lock and then looks at what the lock's last holder did: a snapshot of its own would hide that. And a
# relay that is frozen in the middle of a transaction must not keep its locks: others wait to take its lanes over.
_ISOLATED: Final = (
    ("default_transaction_isolation", "'read committed'"),
    ("idle_in_transaction_session_timeout", "10000"),
)
_UNPINNED: Final = "; ".join(f"set local {name} = default" for name, _ in _PINS if name != "jit")
# What people ask is answered in less time than compiling the question takes.
_UNCOMPILED: Final = "set local jit = off"
_DURABLE: Final = "set local synchronous_commit = default"

_AWAY: Final = ("08", "57", "53", "40", "55P03", "25006")
"""SQLSTATE beginnings that pass: connection, shutdown, resources, conflicts, lock timeout, a standby."""


class Database:
    """A small pool, and the three ways the store uses it: quick, durable, asking."""

    def __init__(
        self,
        url: str,
        *,
        driver: DriverName | None = None,
        pooler: Pooler = "none",
        connections: int = 4,
        timeout: timedelta,
    ) -> None:
        self.driver: Final = driver_called(driver)
        self._url = url
        self._pooled = pooler == "transaction"
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._pool: Pool | None = None
        self.session: object = None
        """Changes whenever what was read may have to be read again: a failover can take the sequence back."""

    async def open(self) -> None:
        with mapped_errors(self.driver):
            self._pool = await self.driver.pool(
                self._url,
                size=self._connections,
                timeout=self._timeout,
                init=self._prepare,
                is_direct=not self._pooled,
            )

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def quick(self) -> AsyncIterator[Connection]:
        """Hot statements: pinned plans, one implicit transaction each, losing the last of them costs a repeat."""
        async with self._borrowed() as connection:
            if not self._pooled:
                yield connection
                return
            async with _transaction(connection):
                await connection.execute(_settings(_PINS + _RELAXED))
                yield connection

    @asynccontextmanager
    async def durable(self) -> AsyncIterator[Connection]:
        """One transaction that survives a crash of the server, with the pinned plans."""
        async with self._borrowed() as connection, _transaction(connection):
            await connection.execute(_settings(_PINS) if self._pooled else _DURABLE)
            yield connection

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Connection]:
        """One durable transaction with the planner free to choose: for what people ask and do."""
        async with self._borrowed() as connection, _transaction(connection):
            await connection.execute(_UNCOMPILED if self._pooled else f"{_UNPINNED}; {_DURABLE}")
            yield connection

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Connection]:
        """One snapshot for several statements, with the planner free to choose: for what people ask."""
        async with (
            self._borrowed() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(_UNCOMPILED if self._pooled else _UNPINNED)
            yield connection

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Connection]:
        with mapped_errors(self.driver):
            if self._pool is None:
                raise StoreUnavailable("The PostgreSQL store is not open; call open() first.")
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection

    async def _prepare(self, connection: Connection) -> None:
        self.session = object()
        if not self._pooled:
            await connection.execute(pins())


def pins() -> str:
    """What a direct connection is set to for as long as it lives."""
    return _settings(_PINS + _RELAXED + _ISOLATED).replace("set local", "set")


def _transaction(connection: Connection) -> AbstractAsyncContextManager[object]:
    return connection.transaction(isolation="read_committed")


def _settings(pairs: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"set local {name} = {value}" for name, value in pairs)


@contextmanager
def mapped_errors(driver: Driver) -> Iterator[None]:
    """Turn the driver's errors into ours, once, with the cause kept. No URL and no password is repeated.

    Who is cancelled stays cancelled: a driver that then finds the server gone tells of that instead.
    """
    cancels = _cancels()
    try:
        yield
    except PillarboxError:
        raise
    except driver.errors as error:
        if _cancels() > cancels:
            raise asyncio.CancelledError from error
        refusal = driver.refusal(error)
        raise (_unreached(error) if refusal is None else _told(refusal)) from error


def _cancels() -> int:
    """How often the running task was told to stop."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _unreached(error: Exception) -> StoreError:
    words = " ".join(str(error).split()) or type(error).__name__
    return StoreUnavailable(f"PostgreSQL cannot be reached ({words}): check that it runs, and the URL's host and port.")


def _told(refusal: Refusal) -> StoreError:
    state, message = refusal.state, refusal.message
    if state == "42P01":
        return SchemaMissing(f"A table is missing ({message}): run `pillarbox schema install`.")
    if state.startswith("28"):
        return StoreUnavailable(f"PostgreSQL refused the login ({message}): check the URL's user and password.")
    if state == "3D000":
        return StoreUnavailable(f"PostgreSQL is there, but {message}: create it or correct the URL.")
    if state.startswith(_AWAY):
        return StoreUnavailable(f"PostgreSQL is not able to answer now ({message}): it will be tried again.")
    if state == "42501":
        return StoreError(f"PostgreSQL refused it ({message}): see `pillarbox schema grants`.")
    return StoreError(
        f"PostgreSQL refused it ({state}: {message})." if state else f"PostgreSQL refused it ({message})."
    )
