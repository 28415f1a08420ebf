"""The pool of connections, the settings that pin their plans, and the mapping of driver errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pillarbox.database_errors import ErrorClass, classify_sqlstate
from pillarbox.errors import (
    PillarboxError,
    StoreBusy,
    StoreError,
    StoreForbidden,
    StoreRefused,
    StoreUnavailable,
)
from pillarbox.redaction import redact_line
from pillarbox.stores.liveness import AnswerLimit, limit_answers, limit_heartbeats
from pillarbox.stores.migrations import explain_missing_table
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.postgres.driver import (
    Connection,
    Driver,
    DriverName,
    OnConnect,
    Pool,
    Refusal,
    Settings,
    load_driver,
)
from pillarbox.stores.tls import is_certificate_error

if TYPE_CHECKING:
    from pillarbox.stores.postgres.sharing import SharedDatabase

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
)
# Compiling a query takes longer than answering it, in every transaction.
_NO_JIT: Final = (("jit", "off"),)
_RELAXED: Final = (("synchronous_commit", "off"),)
# The fence takes a lock and then reads what the lock's last holder wrote: one snapshot for the whole transaction would
# hide that.
_ISOLATED: Final = (("default_transaction_isolation", "read committed"),)
# A relay that freezes in a transaction, or whose host vanishes, must not keep its locks: the server ends its
# transaction. Waiting for a lock is silence too, so its bound is below every `AnswerLimit` of a pool.
_BOUNDS: Final = (("idle_in_transaction_session_timeout", "10000"), ("lock_timeout", "2000"))
# The server finds out that a host has vanished, even while it waits for that host to take an answer. Probes also keep
# an idle connection in the memory of the firewalls on its way.
_PROBES: Final = (
    ("tcp_user_timeout", "10000"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "3"),
    ("tcp_keepalives_count", "3"),
)
_LOGIN: Final = _NO_JIT + _ISOLATED + _BOUNDS + _PROBES
"""Settings that go with the login. They are the session's defaults then, so none is here that a transaction resets."""
_CHANGED: Final = _PINS + _RELAXED
"""Settings of a session that `durable` and `unpinned` set back to the defaults of the server."""
SESSION_SETTINGS: Final[Settings] = _LOGIN + _CHANGED
"""Settings of a direct connection, for as long as it lives."""
_PATIENT: Final = (("lock_timeout", "10000"),)
"""A person may wait for a lock longer than a relay."""


def _set_local(settings: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"set local {name} = '{value}'" for name, value in settings)


_UNPIN: Final = "; ".join(f"set local {name} = default" for name, _ in _PINS)
_DURABLE: Final = "set local synchronous_commit = default"
_UTC: Final = (("timezone", "UTC"),)

_VERIFY: Final = """
    select current_setting('idle_in_transaction_session_timeout') = '10s',
           (select set_config(name, '1s', false) from pg_settings
             where name = 'client_connection_check_interval' and version() like '%linux%')
"""
"""Tells whether the settings arrived. From version 14 on, a server on Linux can also check whether its client is still
connected: a statement on a connection that was given up must not keep its locks."""

_READ_ONLY: Final = "25006"
_TRANSIENT: Final = ("08", _READ_ONLY)
"""SQLSTATE prefixes of errors that pass, though maybe not by themselves: connection, a standby."""
_BUSY: Final = ("57", "53", "58", "40", "55P03", "25P03", "25P04")
"""SQLSTATE prefixes of errors that pass: shutdown and start, resources, disk, conflicts, a bound of time."""
_NOT_THE_ROW: Final = ("0A", "25", "26", "2D", "34", "3B", "3F", "42", "F0", "HV")
"""SQLSTATE prefixes of errors that lie in the statement or the schema. All others lie in the values: constraints,
types, limits, damaged rows, and a trigger may raise any state that it likes."""
_REFUSED_SETTING: Final = "startup parameter"
"""What a pooler says of a setting that it cannot keep for one client."""

_CLOSE_TIMEOUT: Final = 2.0


class LentPool:
    """Lends the connections of a pool, and drops those on which the server is silent for too long.

    A firewall that forgets a connection tells nobody: both ends would wait for minutes.
    """

    def __init__(self, pool: Pool, driver: Driver, *, timeout: float) -> None:
        self._pool = pool
        self._driver = driver
        self._timeout = timeout
        self._drops = 0
        self.limit: AnswerLimit | None = None

    @asynccontextmanager
    async def lend(self, *, limited: bool) -> AsyncIterator[Connection]:
        """Lend a connection. With `limited`, and where there is a limit, it is dropped if the block takes longer."""
        limit = self.limit if limited else None
        if limit is None:
            async with self._pool.acquire(timeout=self._timeout) as connection:
                with self._name_drops():
                    yield connection
            return
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        alarm: asyncio.TimerHandle | None = None
        try:
            async with self._pool.acquire(timeout=limit.get(began_at)) as connection:
                began_at = loop.time()
                alarm = loop.call_later(limit.get(began_at), self._drop, connection, began_at)
                try:
                    with self._name_drops():
                        yield connection
                except asyncio.CancelledError:
                    # Drivers tell the server and wait for its answer, which never comes over a dropped connection.
                    self._driver.abort(connection)
                    raise
                finally:
                    alarm.cancel()
        except TimeoutError:
            if alarm is None:  # no connection could be opened in time
                limit.double(loop.time(), began_at=began_at)
            raise
        limit.note(loop.time() - began_at, loop.time())

    @contextmanager
    def _name_drops(self) -> Iterator[None]:
        """Raise the error of a lost connection where a driver fails otherwise, because its connection was dropped.

        asyncpg looks for its connection once more between two steps of a statement, and finds None.
        """
        drops = self._drops
        try:
            yield
        except AttributeError as error:
            if self._drops == drops:
                raise
            raise ConnectionResetError("the connection was dropped, because the server was silent") from error

    def _drop(self, connection: Connection, began_at: float) -> None:
        self._drops += 1
        if self.limit is not None:
            self.limit.double(asyncio.get_running_loop().time(), began_at=began_at)
        self._driver.abort(connection)
        self._pool.abort()  # what forgot one connection has likely forgotten all of that age

    def abort(self) -> None:
        """Drop all connections at once. The next borrower opens another."""
        self._pool.abort()

    async def close(self) -> None:
        """Close all connections; drop what does not answer."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._pool.close()
        except self._driver.errors:
            self._pool.abort()


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
        dialect: PostgresDialect = "native",
        shared: SharedDatabase | None = None,
    ) -> None:
        self.driver: Final = load_driver(driver) if shared is None else shared.driver
        self.is_portable = dialect == "portable"
        self._shared = shared
        """Connections that the stores of this database share; None if this one has its own."""
        self._url = url
        self._pooled = pooler == "transaction"
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._pool: LentPool | None = None
        self._heartbeat_pool: LentPool | None = None
        self.session: object = None
        """Changes with each new connection or server, and ends older cursors: a failover can take the ids back."""
        self._started_at: datetime | None = None
        """Start of the server that answered last."""

    async def open(self) -> None:
        if self._shared is None:
            self._pool = await self._open_pool(self._connections, self._set_up)
            return
        with map_errors(self.driver):
            pool = await self._shared.work.attach(
                self.driver,
                self._url,
                timeout=self._timeout,
                on_connect=self._set_up_session,
                on_session=self._renew_session,
                settings=None if self._pooled else self._login_settings,
            )
        self._pool = LentPool(pool, self.driver, timeout=self._timeout)

    async def prepare_heartbeat(self, *, lease: timedelta) -> None:
        """Open a connection for heartbeats alone, and limit the wait for answers by the lease.

        So a heartbeat waits for no other call, and connections that were dropped silently are replaced within a lease.
        """
        if self._pool is None or self._heartbeat_pool is not None:
            return
        seconds = lease.total_seconds()
        pool = await self._open_heartbeat_pool()
        pool.limit = limit_heartbeats(seconds, timeout=self._timeout)
        self._heartbeat_pool = pool
        self._pool.limit = limit_answers(seconds, timeout=self._timeout)

    async def _open_heartbeat_pool(self) -> LentPool:
        if self._shared is None:
            return await self._open_pool(1, self._set_up_session)
        with map_errors(self.driver):
            pool = await self._shared.heartbeats.attach(
                self.driver,
                self._url,
                timeout=self._timeout,
                on_connect=self._set_up_session,
                on_session=lambda: None,
                settings=None if self._pooled else self._login_settings,
            )
        return LentPool(pool, self.driver, timeout=self._timeout)

    async def _open_pool(self, size: int, on_connect: OnConnect) -> LentPool:
        with map_errors(self.driver):
            pool = await self.driver.create_pool(
                self._url,
                size=size,
                timeout=self._timeout,
                on_connect=on_connect,
                settings=None if self._pooled else self._login_settings,
            )
        return LentPool(pool, self.driver, timeout=self._timeout)

    def note_server(self, started_at: datetime, *, went_back: bool) -> None:
        """Note which server answered, and whether its transactions went back. Another one ends older cursors.

        A pooler can keep the connection while the server behind it is replaced by one that lacks the last commits.
        """
        if went_back or self._started_at not in (None, started_at):
            self.session = object()
        self._started_at = started_at

    async def close(self) -> None:
        pools, self._pool, self._heartbeat_pool = (self._pool, self._heartbeat_pool), None, None
        await asyncio.gather(*(pool.close() for pool in pools if pool is not None))

    @asynccontextmanager
    async def quick(self, *, heartbeat: bool = False) -> AsyncIterator[Connection]:
        """Lend a connection for hot statements: pinned plans, one implicit transaction each.

        A crash of the server may take the last of them back, which costs a repeat.
        """
        async with self._borrow(limited=True, heartbeat=heartbeat) as connection:
            if not self._pooled:
                yield connection
                return
            async with self._transaction(connection, () if self.is_portable else _NO_JIT + _PINS + _RELAXED):
                yield connection

    @asynccontextmanager
    async def durable(self, *, limited: bool = True) -> AsyncIterator[Connection]:
        """Open one transaction that survives a crash of the server, with pinned plans.

        Without `limited` it may take long: the answers are waited for as long as outside a relay.
        """
        async with (
            self._borrow(limited=limited) as connection,
            self._transaction(connection, _NO_JIT + _PINS, direct=_DURABLE)
            if not self.is_portable
            else self._transaction(connection, ()),
        ):
            yield connection

    @asynccontextmanager
    async def unpinned(self) -> AsyncIterator[Connection]:
        """Open one durable transaction in which the planner chooses freely: for queries and actions of people."""
        async with (
            self._borrow() as connection,
            self._transaction(connection, _NO_JIT + _PATIENT, direct=f"{_UNPIN}; {_DURABLE}; {_set_local(_PATIENT)}")
            if not self.is_portable
            else self._transaction(connection, _PATIENT, direct=_set_local(_PATIENT)),
        ):
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open one read-only snapshot for several statements, in which the planner chooses freely."""
        mode = "isolation level repeatable read read only"
        async with (
            self._borrow() as connection,
            self._transaction(connection, _NO_JIT, direct=_UNPIN, mode=mode)
            if not self.is_portable
            else self._transaction(connection, (), mode=mode),
        ):
            yield connection

    @asynccontextmanager
    async def _borrow(self, *, limited: bool = False, heartbeat: bool = False) -> AsyncIterator[Connection]:
        pool = (self._heartbeat_pool if heartbeat else None) or self._pool
        with map_errors(self.driver):
            if pool is None:
                raise StoreUnavailable("The PostgreSQL store is not open; call open() first.")
            try:
                async with pool.lend(limited=limited) as connection:
                    yield connection
            except self.driver.errors as error:
                refusal = self.driver.parse_refusal(error)
                if refusal is not None and refusal.state == _READ_ONLY:
                    # It became a standby. A new connection may lead to the primary: by another host of the URL, or by
                    # a name or an address that has moved.
                    pool.abort()
                raise

    @asynccontextmanager
    async def _transaction(
        self,
        connection: Connection,
        pooled: Settings,
        *,
        direct: str = "",
        mode: str = "isolation level read committed",
    ) -> AsyncIterator[None]:
        """Begin a transaction with its settings in one round trip: whoever freezes after it is bounded already."""
        settings = _set_local(_BOUNDS + self._statement_bound + _UTC + pooled) if self._pooled else direct
        await connection.execute(f"begin {mode}; {settings}")
        try:
            yield
        except asyncio.CancelledError:
            self.driver.abort(connection)  # whoever is cancelled must not wait for an answer
            raise
        except BaseException:
            with contextlib.suppress(*self.driver.errors):  # no pool lends a connection that is in a transaction
                await connection.execute("rollback")
            raise
        await connection.execute("commit")

    @property
    def _statement_bound(self) -> Settings:
        return (("statement_timeout", str(int(self._timeout * 1000))),)

    @property
    def _login_settings(self) -> Settings:
        """The settings that go with the login of a direct connection: a pooler that cannot keep them refuses it."""
        return (_ISOLATED + _BOUNDS if self.is_portable else _LOGIN) + self._statement_bound

    def _renew_session(self) -> None:
        self.session = object()

    async def _set_up(self, connection: Connection) -> None:
        self._renew_session()
        await self._set_up_session(connection)

    async def _set_up_session(self, connection: Connection) -> None:
        """Make the other settings of a direct connection; raise `StoreUnavailable` if a pooler dropped the first."""
        if self._pooled or self.is_portable:
            return
        if not (await connection.fetchrow(_VERIFY))[0]:
            raise StoreUnavailable(_needs_pooler("it did not pass them on"))
        await connection.execute("; ".join(f"set {name} = '{value}'" for name, value in _CHANGED))


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
    reason = redact_line(str(error)) or type(error).__name__
    if is_certificate_error(error, reason):
        return StoreUnavailable(
            f"PostgreSQL's certificate cannot be trusted, or it has none ({reason}): name its authority with "
            "sslrootcert=FILE. sslmode=require encrypts without a check, sslmode=disable does neither."
        )
    return StoreUnavailable(
        f"PostgreSQL cannot be reached ({reason}): check that it runs, and the URL's host and port."
    )


def _needs_pooler(reason: str) -> str:
    return (
        f"A pooler stands before PostgreSQL and does not take the settings of a relay's connection ({reason}): add "
        "pooler=transaction to the options of the store."
    )


def _map_refusal(refusal: Refusal) -> StoreError:
    state, message = refusal.state, redact_line(refusal.message)
    if _REFUSED_SETTING in message:
        return StoreUnavailable(_needs_pooler(message))
    if state == "42P01":
        return explain_missing_table(message)
    if state.startswith("28"):
        return StoreUnavailable(f"PostgreSQL refused the login ({message}): check the URL's user and password.")
    if state == "3D000":
        return StoreUnavailable(f"PostgreSQL is there, but {message}: create it or correct the URL.")
    if state.startswith((*_BUSY, *_TRANSIENT)) or classify_sqlstate(state) is not ErrorClass.FAILURE:
        kind = StoreBusy if state.startswith(_BUSY) else StoreUnavailable
        return kind(f"PostgreSQL is not able to answer now ({message}): it will be tried again.")
    if state == "42501":
        return StoreForbidden(f"PostgreSQL refused it ({message}): see `pillarbox schema grants`.")
    error = StoreError if not state or state.startswith(_NOT_THE_ROW) else StoreRefused
    return error(f"PostgreSQL refused it ({state}: {message})." if state else f"PostgreSQL refused it ({message}).")
