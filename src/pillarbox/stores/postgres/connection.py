"""Connections to PostgreSQL: how they are opened, pinned, borrowed, and how their errors are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, Literal

from pillarbox.errors import MissingExtra, PillarboxError, SchemaMissing, StoreError, StoreUnavailable

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise MissingExtra("asyncpg", extra="postgres", needed_for="The PostgreSQL store") from error

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


class _Connection(asyncpg.Connection):
    """Keeps its settings when it goes back to the pool: a reset would cost a round trip and unpin the plans."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A small pool, and the three ways the store uses it: quick, durable, asking."""

    def __init__(self, url: str, *, pooler: Pooler = "none", connections: int = 4, timeout: timedelta) -> None:
        self._url = url
        self._pooled = pooler == "transaction"
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._pool: Any = None
        self.session: object = None
        """Changes whenever what was read may have to be read again: a failover can take the sequence back."""

    async def open(self) -> None:
        with mapped_errors():
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=self._connections,
                max_size=self._connections,
                connection_class=_Connection,
                init=self._prepare,
                timeout=self._timeout,
                command_timeout=self._timeout,
                statement_cache_size=0 if self._pooled else 200,
                max_inactive_connection_lifetime=0,
            )

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def quick(self) -> AsyncIterator[Any]:
        """Hot statements: pinned plans, one implicit transaction each, losing the last of them costs a repeat."""
        async with self._borrowed() as connection:
            if not self._pooled:
                yield connection
                return
            async with _transaction(connection):
                await connection.execute(_settings(_PINS + _RELAXED))
                yield connection

    @asynccontextmanager
    async def durable(self) -> AsyncIterator[Any]:
        """One transaction that survives a crash of the server, with the pinned plans."""
        async with self._borrowed() as connection, _transaction(connection):
            await connection.execute(_settings(_PINS) if self._pooled else _DURABLE)
            yield connection

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Any]:
        """One durable transaction with the planner free to choose: for what people ask and do."""
        async with self._borrowed() as connection, _transaction(connection):
            await connection.execute(_UNCOMPILED if self._pooled else f"{_UNPINNED}; {_DURABLE}")
            yield connection

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Any]:
        """One snapshot for several statements, with the planner free to choose: for what people ask."""
        async with (
            self._borrowed() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(_UNCOMPILED if self._pooled else _UNPINNED)
            yield connection

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Any]:
        with mapped_errors():
            if self._pool is None:
                raise StoreUnavailable("The PostgreSQL store is not open; call open() first.")
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection

    async def _prepare(self, connection: Any) -> None:
        self.session = object()
        if not self._pooled:
            await connection.execute(pins())


def pins() -> str:
    """What a direct connection is set to for as long as it lives."""
    return _settings(_PINS + _RELAXED + _ISOLATED).replace("set local", "set")


def _transaction(connection: Any) -> Any:
    return connection.transaction(isolation="read_committed")


def _settings(pairs: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"set local {name} = {value}" for name, value in pairs)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn the driver's errors into ours, once, with the cause kept. No URL and no password is repeated."""
    try:
        yield
    except PillarboxError:
        raise
    except asyncpg.UndefinedTableError as error:
        raise SchemaMissing(f"A table is missing ({error}): run `pillarbox schema install`.") from error
    except asyncpg.PostgresError as error:
        raise _told(error) from error
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise StoreUnavailable(
            f"PostgreSQL cannot be reached ({str(error) or type(error).__name__}): "
            "check that it runs, and the URL's host and port."
        ) from error


def _told(error: asyncpg.PostgresError) -> StoreError:
    state = error.sqlstate or ""
    if state.startswith("28"):
        return StoreUnavailable(f"PostgreSQL refused the login ({error}): check the URL's user and password.")
    if state == "3D000":
        return StoreUnavailable(f"PostgreSQL is there, but {error}: create it or correct the URL.")
    if state.startswith(_AWAY):
        return StoreUnavailable(f"PostgreSQL is not able to answer now ({error}): it will be tried again.")
    if state == "42501":
        return StoreError(f"PostgreSQL refused it ({error}): see `pillarbox schema grants`.")
    return StoreError(f"PostgreSQL refused it ({type(error).__name__}: {error}).")
