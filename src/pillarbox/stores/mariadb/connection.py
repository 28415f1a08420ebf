"""Connections of a MariaDB store, each used by one thread at a time: the event loop never waits for the server."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pillarbox.clock import Clock
from pillarbox.contracts.store import Selection
from pillarbox.errors import ConfigError, MissingExtra, PillarboxError, SchemaMissing, StoreError, StoreUnavailable
from pillarbox.message import TABLES, Names
from pillarbox.stores.sql import Statements
from pillarbox.stores.sync_sql.database import SelectionParameters
from pillarbox.stores.sync_sql.rows import to_microseconds

__all__ = ["Database", "Transaction", "build_statements", "connect", "get_error_number", "map_errors"]

try:
    import pymysql
    from pymysql.constants import CLIENT
except ModuleNotFoundError as error:
    raise MissingExtra("pymysql", extra="mariadb", needed_for="The MariaDB store") from error

T = TypeVar("T")

# The fence takes a lock and then reads what the lock's last holder did: a snapshot of its own would hide that. And a
# relay that is frozen in the middle of a transaction must not keep its locks: others wait to take its lanes over.
_SESSION: Final = (
    "set session transaction isolation level read committed",
    "set session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'",
    "set session innodb_lock_wait_timeout = 5, group_concat_max_len = 1048576",
)
_MARIADB_SESSION: Final = "set session idle_transaction_timeout = 10"
_BEGIN_READ: Final = (
    "set transaction isolation level repeatable read",
    "start transaction with consistent snapshot, read only",
)
_BEGIN_WRITE: Final = ("start transaction",)
_ATTEMPTS: Final = 5
"""Times that a transaction is begun when others conflict with it. The work runs again from its start."""

_COMMENT: Final = re.compile(r"--[^\n]*\n")
_PARAMETER: Final = re.compile(r":([a-z_][a-z0-9_]*)")
_PAYLOAD: Final = "case when %(payloads)s then payload when payload is not null then x'' end"

_CONFLICTS: Final = frozenset({1020, 1062, 1213})
"""Another transaction conflicted, and this one is undone: changed under it, the same key, a deadlock."""
_LOGIN: Final = frozenset({1044, 1045, 1698, 1862, 2059})
_RIGHTS: Final = frozenset({1142, 1143, 1227, 1370})
_MISSING_TABLE: Final = frozenset({1146, 1356})
_MISSING_DATABASE: Final = 1049
_TEMPORARY: Final = frozenset({
    1040, 1041, 1047, 1053, 1158, 1159, 1160, 1161, 1205, 1290, 1317, 1792, 1836, 1927, 1969,
})  # fmt: skip
"""Resources, shutdown, networks, lock timeout, read-only, killed."""
_CLIENT_ERRORS: Final = range(2000, 3000)
_CONNECTION_ENDED: Final = frozenset({1053, 1927, 4031})


class _Sql(NamedTuple):
    """Piece of SQL among the values: it goes into the statement as it is."""

    text: str


_NOW: Final = _Sql("timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))")
"""The server's clock, whatever the session's time zone is."""
_EMPTY_LIST: Final = _Sql("(null)")


def build_statements(names: Names) -> Statements:
    """Read the statements of this store."""
    package, shared = "pillarbox.stores.mariadb", "pillarbox.stores.sync_sql"
    return Statements(package, names, shared=shared, quote="`", translate=_translate)


def _translate(sql: str) -> str:
    """Write parameters as PyMySQL takes them: `:limit` becomes `%(limit)s`."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


class Database:
    """Pool of a few connections, and as many threads."""

    def __init__(self, dsn: str, *, names: Names, clock: Clock | None, connections: int, timeout: timedelta) -> None:
        self._dsn = dsn
        self._names = names
        self._statements = build_statements(names)
        self._clock = clock
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[Any] = []
        self._all: set[Any] = set()
        self._guard = threading.Lock()
        self._session: object = None

    def table_values(self) -> dict[str, object]:
        """Return the names of our tables as information_schema has them."""
        return {"schema": self._names.schema, "tables": [self._names.bare(table) for table in TABLES]}

    async def open(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connections, thread_name_prefix="pillarbox-mariadb")
            try:
                await self._run_in_thread(self._connect_all)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            # Cancelling the caller must not leave connections open.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._disconnect_all, threads))

    async def query(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        return await self.read_committed(lambda tx: tx.query(name, values))

    async def read_committed(self, work: Callable[[Transaction], T]) -> T:
        """Run statements that only read, each with a snapshot of its own: no round trip to begin or commit."""
        return await self._run_in_thread(self._transaction, (), work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self._run_in_thread(self._transaction, _BEGIN_READ, work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        return await self._run_in_thread(self._transaction, _BEGIN_WRITE, work)

    # The server, and not a session, decides whether a commit waits for the disk.
    write_relaxed = write

    async def _run_in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._threads is None:
            raise StoreUnavailable("The MariaDB store is not open; call open() first.")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _transaction(self, begin: tuple[str, ...], work: Callable[[Transaction], T]) -> T:
        with map_errors():
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._attempt(begin, work)
                except Exception as error:
                    if not begin or get_error_number(error) not in _CONFLICTS:
                        raise
            return self._attempt(begin, work)

    def _attempt(self, begin: tuple[str, ...], work: Callable[[Transaction], T]) -> T:
        connection = self._borrow()
        try:
            for statement in begin:
                connection.query(statement)
            transaction = Transaction(
                connection, self._statements, clock=self._clock, session=self._session, locks=begin is _BEGIN_WRITE
            )
            result = work(transaction)
            if begin:
                connection.commit()
        except BaseException as error:
            self._roll_back(connection, lost=_is_connection_lost(error), begun=bool(begin))
            raise
        self._give_back(connection)
        return result

    def _roll_back(self, connection: Any, *, lost: bool, begun: bool) -> None:
        """Undo the transaction; where a rollback cannot be sent, closing the connection undoes it."""
        if not lost:
            try:
                if begun:
                    connection.rollback()
                self._give_back(connection)
            except Exception:
                lost = True
        if lost:
            self._drop(connection)

    def _borrow(self) -> Any:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _connect(self) -> Any:
        connection = connect(self._dsn, timeout=self._timeout)
        with self._guard:
            self._session = object()
            self._all.add(connection)
        return connection

    def _connect_all(self) -> None:
        for _ in range(self._connections):
            self._give_back(self._connect())

    def _give_back(self, connection: Any) -> None:
        with self._guard:
            self._idle.append(connection)

    def _drop(self, connection: Any) -> None:
        with self._guard:
            self._all.discard(connection)
            self._session = object()
        with suppress(Exception):
            connection.close()

    def _disconnect_all(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown()
        with self._guard:
            connections, self._all, self._idle = self._all, set(), []
        for connection in connections:
            with suppress(Exception):
                connection.close()


class Transaction:
    """Transaction of the shared protocol. With `locks`, a selection locks what it finds: operators act at once."""

    def __init__(
        self, connection: Any, statements: Statements, *, clock: Clock | None, session: object, locks: bool
    ) -> None:
        self._locks = locks
        self._connection = connection
        self._statements = statements
        self._now: int | _Sql = _NOW if clock is None else to_microseconds(clock.now())
        self.session = session
        """Changes with every new connection: after a failover ids may have gone back, and cursors are not valid."""

    @property
    def now(self) -> int:
        if isinstance(self._now, int):
            return self._now
        ((now,),) = self._fetch(f"select {_NOW.text}", {})
        return int(now)

    def query(self, name: str, values: Mapping[str, object] = {}, *, selection: Selection | None = None) -> list[Any]:
        if selection is None:
            return self._fetch(self._statements[name], self._bind(values))
        parameters = SelectionParameters(fold_function="lower", fold=str.lower)
        sql = self._statements.fill(name, parameters.build_conditions(selection))
        if self._locks:
            # Until the commit no relay settles what was found, and no other operator changes it.
            sql += "   for update"
        elif not values.get("payloads", True):  # a viewer has no right even to name that column
            sql = sql.replace(_PAYLOAD, "''")
        return self._fetch(sql, self._bind({**values, **parameters.values}))

    def union(self, name: str, each: list[dict[str, object]]) -> list[Any]:
        """Return the rows of one statement for several sets of values, in one round trip and one snapshot."""
        text = _COMMENT.sub("", self._statements[name])
        parts = [self._connection.cursor().mogrify(text, self._bind(values)) for values in each]
        return self._fetch(" union all ".join(parts), None)

    def execute(self, name: str, values: Mapping[str, object] = {}) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._statements[name], self._bind(values)))

    def _fetch(self, sql: str, values: Mapping[str, object] | None) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def _bind(self, values: Mapping[str, object]) -> dict[str, object]:
        """Add the time, and replace empty lists, which MySQL's grammar does not allow."""
        bound = {name: _EMPTY_LIST if value == [] else value for name, value in values.items()}
        return {**bound, "now": self._now}


def connect(dsn: str, *, timeout: float) -> Any:
    """Open a connection that commits each statement, outside of transactions."""
    with map_errors():
        connection: Any = pymysql.connect(
            **_parse_dsn(dsn),
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=max(1, int(timeout)),
            read_timeout=timeout,
            write_timeout=timeout,
        )
        connection.encoders = {**connection.encoders, _Sql: _encode_sql}
        with connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)
            if "MariaDB" in connection.get_server_info():
                cursor.execute(_MARIADB_SESSION)
    return connection


def _encode_sql(value: _Sql, _: object = None) -> str:
    return value.text


def _parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the arguments of `pymysql.connect`."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    tls = _build_tls(options)
    address: dict[str, Any] = {"host": parts.hostname or "127.0.0.1", "port": parts.port or 3306}
    if "unix_socket" in options:
        address = {"unix_socket": options["unix_socket"]}
    return {
        **address,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path[1:]),
        "ssl": tls,
        "ssl_disabled": tls is None,
    }


def _build_tls(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Build a verified context if TLS is turned on, or a certificate is named."""
    if not {"ssl_ca", "ssl_cert"} & options.keys() and options.get("ssl", "off") == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise ConfigError(
            f"A certificate of the store URL cannot be used ({error}): check the files after ssl_ca, ssl_cert and "
            "ssl_key."
        ) from error
    if options.get("ssl") == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def map_errors() -> Iterator[None]:
    """Map the driver's errors to ours, once, with the cause kept. No URL and no password is repeated."""
    try:
        yield
    except PillarboxError:
        raise
    except pymysql.Error as error:
        raise _map_error(error) from error
    except (OSError, ssl.SSLError) as error:
        raise _unreachable(error) from error


def _map_error(error: pymysql.Error) -> StoreError:
    number, text = get_error_number(error), error.args[-1] if error.args else type(error).__name__
    if number in _MISSING_TABLE:
        return SchemaMissing(f"A table is missing ({text}): run `pillarbox schema install`.")
    if number in _LOGIN:
        return StoreUnavailable(f"MariaDB refused the login ({text}): check the URL's user and password.")
    if number == _MISSING_DATABASE:
        return StoreUnavailable(
            f"MariaDB is there, but there is an {text[0].lower()}{text[1:]}: create it or correct the URL."
        )
    if number in _RIGHTS:
        return StoreError(f"MariaDB refused it ({text}): see `pillarbox schema grants`.")
    if number in _CONFLICTS or number in _TEMPORARY:
        return StoreUnavailable(f"MariaDB is not able to answer now ({text}): it will be tried again.")
    if _is_connection_lost(error):
        return _unreachable(error)
    return StoreError(f"MariaDB refused it ({type(error).__name__} {number}: {text}).")


def _unreachable(error: BaseException) -> StoreUnavailable:
    text = str(error.args[-1]) if error.args else type(error).__name__
    return StoreUnavailable(
        f"MariaDB cannot be reached ({text or type(error).__name__}): check that it runs, and the URL's host and port."
    )


def get_error_number(error: BaseException) -> int:
    """Return MySQL's number of an error; 0 where it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _is_connection_lost(error: BaseException) -> bool:
    if isinstance(error, (pymysql.InterfaceError, OSError)):
        return True
    number = get_error_number(error)
    return isinstance(error, pymysql.Error) and (number in _CLIENT_ERRORS or number in _CONNECTION_ENDED)
