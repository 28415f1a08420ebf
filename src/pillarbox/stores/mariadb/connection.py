"""Connections of a MariaDB store, each used by one thread at a time: the event loop never waits for the server."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

from pillarbox.clock import Clock
from pillarbox.contracts.store import Order, Selection
from pillarbox.database_errors import ErrorClass, classify_mysql_number
from pillarbox.errors import (
    ConfigError,
    MissingExtra,
    PillarboxError,
    StoreBusy,
    StoreError,
    StoreForbidden,
    StoreRefused,
    StoreUnavailable,
)
from pillarbox.hosts import HostList
from pillarbox.message import TABLES, Names
from pillarbox.mysql_errors import CONFLICTS, CONNECTION_ENDED, EXHAUSTED, LOCK_TIMEOUTS, NOT_LEADER, UNAVAILABLE
from pillarbox.redaction import redact_line
from pillarbox.stores.liveness import AnswerLimit, limit_answers, limit_heartbeats, set_keepalive
from pillarbox.stores.migrations import explain_missing_table
from pillarbox.stores.sql import Statements
from pillarbox.stores.sync_sql.database import SelectionParameters
from pillarbox.stores.sync_sql.rows import to_microseconds
from pillarbox.stores.tls import is_certificate_error, secure_mysql_url

__all__ = ["Database", "Transaction", "build_statements", "connect", "get_error_number", "map_errors"]

try:
    import pymysql
    from pymysql.constants import CLIENT
except ModuleNotFoundError as error:
    raise MissingExtra("pymysql", extra="mariadb", needed_for="The MariaDB store") from error

T = TypeVar("T")

# The fence takes a lock and then reads what the lock's last holder did: a snapshot of its own would hide that. And a
# relay that is frozen in the middle of a transaction must not keep its locks: the server ends what is idle, or what
# takes no answer. Waiting for a row's lock is silence too, so its bound is below every `AnswerLimit` of a read.
_SESSION: Final = (
    "set session transaction isolation level read committed",
    "set session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'",
    "set session innodb_lock_wait_timeout = 2, lock_wait_timeout = 2, group_concat_max_len = 16777216",
    "set session net_write_timeout = 10",
)
_MARIADB_SESSION: Final = "set session idle_transaction_timeout = 10"
_MYSQL_SESSION: Final = "set session wait_timeout = 20"
"""MySQL ends an idle transaction only together with every idle connection."""
_LONGEST_IDLE: Final = 15.0
"""Seconds after which an idle connection is not used again, because MySQL is about to end it."""
_BEGIN_READ: Final = (
    "set transaction isolation level repeatable read",
    "start transaction with consistent snapshot, read only",
)
_BEGIN_WRITE: Final = ("start transaction",)
_CLOSE_TIMEOUT: Final = 2.0
_CLOSE_STEP: Final = 0.01
_NOT_OPEN: Final = "The MariaDB store is not open; call open() first."
_ATTEMPTS: Final = 5
"""Times that a transaction is begun when others conflict with it. The work runs again from its start."""

_RANDOM: Final = "cast(floor(rand() * 4503599627370496) as signed)"
"""A number below 2^52."""
_UNION_PARTS: Final = 128
"""Most selects in one statement: the server needs memory for each, and time to parse them."""
_COMMENT: Final = re.compile(r"--[^\n]*\n")
_PARAMETER: Final = re.compile(r":([a-z_][a-z0-9_]*)")
_INDEX_HINT: Final = re.compile(r" force index for order by \(primary\)")
"""Views take no hints."""
_HIDING: Final = ("outbox", "history", "inbox")
"""Tables with payloads: a viewer has no right on them."""
_PAYLOAD: Final = "case when %(payloads)s then payload when payload is not null then x'' end"

_CONFLICTS: Final = CONFLICTS | {1062}
"""Another transaction conflicted, and this one is undone. The same key in two of them is a conflict too."""
_DUPLICATE: Final = 1062
"""A conflict with a row that is being written passes. If it stays after some attempts, the row is there for good."""
_NOT_THE_ROW: Final = frozenset({1054, 1064, 1100, 1109, 1149, 1305, 1364, 1370, 1449})
"""Errors that lie in the statement or the schema. All others lie in the values: too long, out of range, a constraint,
and a trigger may raise any number that it likes."""
_LOGIN: Final = frozenset({1044, 1045, 1698, 1862, 2059})
_RIGHTS: Final = frozenset({1142, 1143, 1227, 1370})
_USING_PASSWORD: Final = re.compile(r" \(using password: (?:YES|NO)\)")
_MISSING_TABLE: Final = frozenset({1146, 1356})
_MISSING_COLUMN: Final = 1054
_MISSING_DATABASE: Final = 1049
_BUSY: Final = LOCK_TIMEOUTS | EXHAUSTED | {1053, 1317}
"""It can do it later: a lock, a resource or time was lacking, or it shuts down."""
_TEMPORARY: Final = UNAVAILABLE - _BUSY
_CLIENT_ERRORS: Final = range(2000, 3000)


class _Sql(NamedTuple):
    """Piece of SQL among the values: it goes into the statement as it is."""

    text: str


_NOW: Final = _Sql("timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))")
"""The server's clock, whatever the session's time zone is."""
_EMPTY_LIST: Final = _Sql("(null)")


def build_statements(names: Names, *, shown: bool = False) -> Statements:
    """Read the statements of this store. With `shown` they read the views without payloads, as viewers do."""
    package, shared = "pillarbox.stores.mariadb", "pillarbox.stores.sync_sql"
    if not shown:
        return Statements(package, names, shared=shared, quote="`", translate=_translate)
    views = {names.table(table, quote="`"): names.table(f"shown_{table}", quote="`") for table in _HIDING}

    def translate(sql: str) -> str:
        for table, view in views.items():
            sql = sql.replace(table, view)
        return _translate(_INDEX_HINT.sub("", sql))

    return Statements(package, names, shared=shared, quote="`", translate=translate)


def _translate(sql: str) -> str:
    """Write parameters as PyMySQL takes them: `:limit` becomes `%(limit)s`."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).replace("/* random */", _RANDOM)


class Database:
    """Pool of a few connections, and as many threads."""

    def __init__(self, dsn: str, *, names: Names, clock: Clock | None, connections: int, timeout: timedelta) -> None:
        self._servers = list_servers(dsn)
        self._names = names
        self._statements = build_statements(names)
        self._shown = False
        self._clock = clock
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._threads: ThreadPoolExecutor | None = None
        self._heartbeat_thread: ThreadPoolExecutor | None = None
        self._limit = AnswerLimit(self._timeout, longest=self._timeout)
        self._heartbeat_limit = self._limit
        self._idle: list[tuple[Any, float]] = []
        """Connections, and since when each is idle: the latest last."""
        self._all: set[Any] = set()
        self._guard = threading.Lock()
        self._session: object = None

    def table_values(self) -> dict[str, object]:
        """Return the names of our tables as information_schema has them."""
        return {
            "schema": self._names.schema, "tables": [self._names.bare(table) for table in TABLES],
            "outbox": self._names.bare("outbox"),
        }  # fmt: skip

    async def open(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connections, thread_name_prefix="pillarbox-mariadb")
            self._heartbeat_thread = ThreadPoolExecutor(1, thread_name_prefix="pillarbox-mariadb-heartbeat")
            try:
                await self._run_in_thread(self._connect_all)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        threads = [executor for executor in (self._threads, self._heartbeat_thread) if executor is not None]
        self._threads = self._heartbeat_thread = None
        if threads:
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

    async def write_heartbeat(self, work: Callable[[Transaction], T]) -> T:
        if self._heartbeat_thread is None:
            raise StoreUnavailable(_NOT_OPEN)
        call = partial(self._transaction, _BEGIN_WRITE, work, self._heartbeat_limit)
        return await asyncio.get_running_loop().run_in_executor(self._heartbeat_thread, call)

    def use_version(self, version: int) -> None:
        """Run the statements for tables of this version from now on."""
        self._statements.use_version(version)

    def limit_answers(self, *, lease: timedelta) -> None:
        seconds = lease.total_seconds()
        self._limit = limit_answers(seconds, timeout=self._timeout)
        self._heartbeat_limit = limit_heartbeats(seconds, timeout=self._timeout)

    async def _run_in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._threads is None:
            raise StoreUnavailable(_NOT_OPEN)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _transaction(
        self, begin: tuple[str, ...], work: Callable[[Transaction], T], limit: AnswerLimit | None = None
    ) -> T:
        limit = limit or self._limit
        with map_errors():
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._attempt(begin, work, limit)
                except Exception as error:
                    if not begin or get_error_number(error) not in _CONFLICTS:
                        raise
            return self._attempt(begin, work, limit)

    def _attempt(self, begin: tuple[str, ...], work: Callable[[Transaction], T], limit: AnswerLimit) -> T:
        began_at = time.monotonic()
        try:
            connection = self._borrow(limit.get(began_at))
        except StoreUnavailable as error:
            if _is_timeout(error):
                limit.double(time.monotonic(), began_at=began_at)
            raise
        try:
            for statement in begin:
                connection.query(statement)
            transaction = Transaction(
                connection, self._statements, clock=self._clock, session=self._session, locks=begin is _BEGIN_WRITE,
                shown=self._shown,
            )  # fmt: skip
            result = work(transaction)
            if begin:
                connection.commit()
        except BaseException as error:
            is_leader = get_error_number(error) not in NOT_LEADER
            self._roll_back(connection, lost=not is_leader or _is_connection_lost(error), begun=bool(begin))
            if _is_timeout(error):
                limit.double(time.monotonic(), began_at=began_at)
            if not is_leader or _is_timeout(error):
                # A frozen server accepts connections and does not answer: the next one is to be another server's.
                self._servers.note_failure(connection.server)
                self._drop_idle()
            raise
        self._give_back(connection)
        limit.note(time.monotonic() - began_at, time.monotonic())
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

    def _borrow(self, seconds: float) -> Any:
        """Return a connection whose answers are waited for so long: an idle one if it is fresh."""
        oldest = time.monotonic() - _LONGEST_IDLE
        with self._guard:
            connection, idle_since = self._idle.pop() if self._idle else (None, 0.0)
        if connection is not None and idle_since < oldest:
            self._drop_idle()
            self._drop(connection)
            connection = None
        if connection is None:
            connection = self._connect(seconds)
        connection._read_timeout = connection._write_timeout = seconds
        return connection

    def _drop_idle(self) -> None:
        """Drop all idle connections: what forgot one of them has likely forgotten all of that age."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._drop(connection)

    def _connect(self, seconds: float) -> Any:
        connection = connect_first(self._servers, timeout=seconds)
        with self._guard:
            self._session = object()
            self._all.add(connection)
        return connection

    def _find_busy(self) -> set[Any]:
        with self._guard:
            return self._all - {connection for connection, _ in self._idle}

    def _connect_all(self) -> None:
        for _ in range(self._connections):
            self._give_back(self._connect(self._timeout))
        self._shown = self._is_viewer(self._idle[0][0])
        self._statements = build_statements(self._names, shown=self._shown)

    def _is_viewer(self, connection: Any) -> bool:
        """Return whether the server lets this login see no open message; a missing table is for later statements."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"select id from {self._names.table('outbox', quote='`')} limit 0")
        except pymysql.Error as error:
            return get_error_number(error) in _RIGHTS
        return False

    def _give_back(self, connection: Any) -> None:
        with self._guard:
            self._idle.append((connection, time.monotonic()))

    def _drop(self, connection: Any) -> None:
        with self._guard:
            self._all.discard(connection)
            self._session = object()
        with suppress(Exception):
            connection.close()

    def _disconnect_all(self, threads: Sequence[ThreadPoolExecutor]) -> None:
        """Let what runs come to its end for a short time, then end it, and close every connection."""
        until = time.monotonic() + _CLOSE_TIMEOUT
        while (busy := self._find_busy()) and time.monotonic() < until:
            time.sleep(_CLOSE_STEP)
        for connection in busy:
            with suppress(Exception):  # the thread that reads from it gets an error
                connection._sock.shutdown(socket.SHUT_RDWR)
        for executor in threads:
            executor.shutdown()
        with self._guard:
            connections, self._all, self._idle = self._all, set(), []
        for connection in connections:
            with suppress(Exception):
                connection.close()


class Transaction:
    """Transaction of the shared protocol. With `locks`, a selection locks what it finds: operators act at once.

    With `shown` the statements read views that have no payloads: to ask for one is a `StoreForbidden`.
    """

    def __init__(
        self,
        connection: Any,
        statements: Statements,
        *,
        clock: Clock | None,
        session: object,
        locks: bool,
        shown: bool = False,
    ) -> None:
        self._locks = locks
        self._shown = shown
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

    def query(
        self,
        name: str,
        values: Mapping[str, object] = {},
        *,
        selection: Selection | None = None,
        order: Order = Order.ID,
        counted: bool = False,
    ) -> list[Any]:
        if selection is None:
            return self._fetch(self._statements[name], self._bind(values))
        parameters = SelectionParameters(fold_column="lower({})", fold=str.lower)
        where = parameters.build_conditions(selection)
        sql = self._statements.fill_count(name, where) if counted else self._statements.fill(name, where, order=order)
        if self._locks:
            # Until the commit no relay settles what was found, and no other operator changes it.
            sql += "   for update"
        elif not values.get("payloads", True):  # a viewer has no right even to name that column
            sql = sql.replace(_PAYLOAD, "x''")
        return self._fetch(sql, self._bind({**values, **parameters.values}))

    def union(self, name: str, each: Sequence[Mapping[str, object]]) -> list[Any]:
        """Return the rows of one statement for several sets of values, in as few round trips as possible."""
        text = _COMMENT.sub("", self._statements[name])
        cursor = self._connection.cursor()
        parts = [cursor.mogrify(text, self._bind(values)) for values in each]
        rounds = [parts[at : at + _UNION_PARTS] for at in range(0, len(parts), _UNION_PARTS)]
        return [row for some in rounds for row in self._fetch(" union all ".join(some), None)]

    def execute(self, name: str, values: Mapping[str, object] = {}) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._statements[name], self._bind(values)))

    def _fetch(self, sql: str, values: Mapping[str, object] | None) -> list[Any]:
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(sql, values)
            except pymysql.Error as error:
                if not self._shown or get_error_number(error) != _MISSING_COLUMN:
                    raise
                raise StoreForbidden(
                    "Payloads are denied to this login, which is a viewer: see `pillarbox schema grants`."
                ) from error
            return list(cursor.fetchall())

    def _bind(self, values: Mapping[str, object]) -> dict[str, object]:
        """Add the time, unless it is given, and replace empty lists, which MySQL's grammar does not allow."""
        bound = {name: _bind_list(value) if isinstance(value, list) else value for name, value in values.items()}
        return {"now": self._now, **bound}


def _bind_list(values: list[object]) -> object:
    if not values:
        return _EMPTY_LIST
    return [str(value) for value in values] if isinstance(values[0], UUID) else values


_NO_TLS: Final = 2026
"""MySQL's number for an SSL connection error."""


_UNREADABLE: Final = (struct.error, LookupError, ValueError, TypeError, AttributeError, AssertionError)
"""PyMySQL raises these for a greeting that no server sends: the port of something else, or a proxy without a server."""


class _Connection(pymysql.connections.Connection):  # type: ignore[misc, unused-ignore]
    """Sends no login before the connection is encrypted, if it shall be."""

    def _request_authentication(self) -> None:
        # Some releases of PyMySQL go on without TLS if the server, or somebody between, says that it has none.
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            raise pymysql.OperationalError(_NO_TLS, "SSL is required but the server doesn't support it")
        super()._request_authentication()


class Server(NamedTuple):
    """One server of the URL."""

    name: str
    """Host and port, for people."""
    dsn: str
    """The URL with this server alone."""


def list_servers(dsn: str) -> HostList[Server]:
    """List the servers of a URL: `mysql://user@db-1:3306,db-2:3306/shop`."""
    dsn = secure_mysql_url(dsn)  # once for all: a server on another machine has the others prove themselves too
    scheme, _, rest = dsn.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    return HostList([Server(host, f"{scheme}://{login}{at}{host}{slash}{path}") for host in hosts.split(",")])


def connect(dsn: str, *, timeout: float) -> Any:
    """Open a connection that commits each statement, outside of transactions; of several servers to a writable one."""
    return connect_first(list_servers(dsn), timeout=timeout)


def connect_first(servers: HostList[Server], *, timeout: float) -> Any:
    """Open a connection to the first server that takes writes, within so many seconds.

    A single server is taken as it is: a replica can be looked at. Raises `StoreUnavailable` where none takes writes.
    """
    failures: dict[str, StoreError] = {}
    for server, seconds in servers.divide(timeout):
        try:
            connection = _connect(server, timeout=seconds, must_write=len(servers) > 1)
        except StoreError as error:
            servers.note_failure(server)
            failures[server.name] = error
        else:
            servers.note_success(server)
            return connection
    if len(failures) == 1:
        raise next(iter(failures.values()))
    reasons = "; ".join(f"{name}: {str(error).rstrip('.')}" for name, error in failures.items())
    raise StoreUnavailable(f"No server of the store URL takes writes ({reasons}).") from next(iter(failures.values()))


def _connect(server: Server, *, timeout: float, must_write: bool) -> Any:
    with map_errors():
        connection = _log_in(_parse_dsn(server.dsn), timeout=timeout)
        try:
            connection.server = server
            set_keepalive(connection._sock)
            connection.encoders = {**connection.encoders, _Sql: _encode_sql}
            with connection.cursor() as cursor:
                if must_write:
                    _check_writable(cursor)
                for statement in _SESSION:
                    cursor.execute(statement)
                cursor.execute(_MARIADB_SESSION if "MariaDB" in connection.get_server_info() else _MYSQL_SESSION)
        except BaseException:
            with suppress(Exception):
                connection.close()
            raise
    return connection


_WRITABLE: Final = (
    "show global variables where variable_name in ('read_only', 'super_read_only', 'offline_mode', 'wsrep_on')",
    "show global status where variable_name in ('wsrep_ready', 'wsrep_cluster_status')",
)
"""`show`, because a node of Galera that left its cluster refuses to select even a variable."""


def _check_writable(cursor: Any) -> None:
    """Raise `StoreUnavailable` for a replica, a secondary of a group, and a node of Galera that is not ready."""
    found: dict[str, str] = {}
    for statement in _WRITABLE:
        cursor.execute(statement)
        found.update({str(name).lower(): str(value) for name, value in cursor.fetchall()})
    if {"ON", "1"} & {found.get(name, "OFF") for name in ("read_only", "super_read_only", "offline_mode")}:
        raise StoreUnavailable("It is read-only: a replica, a secondary of its group, or set so.")
    is_ready = found.get("wsrep_ready") == "ON" and found.get("wsrep_cluster_status") == "Primary"
    if found.get("wsrep_on") == "ON" and not is_ready:
        raise StoreUnavailable("Its node of Galera is not ready, or its part of the cluster has no majority.")


def _log_in(arguments: Mapping[str, Any], *, timeout: float) -> Any:
    try:
        return _Connection(
            **arguments,
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=max(1, int(timeout)),
            read_timeout=timeout,
            write_timeout=timeout,
        )
    except _UNREADABLE as error:
        raise StoreUnavailable(
            f"What answers is not MariaDB or MySQL ({type(error).__name__}): check the URL's host and port."
        ) from error


def _encode_sql(value: _Sql, _: object = None) -> str:
    return value.text


def _parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the arguments of `pymysql.connect`."""
    parts = urlsplit(secure_mysql_url(dsn))
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
    except (OverflowError, UnicodeError) as error:  # the driver cannot even send the value
        raise StoreRefused(f"MariaDB cannot take a value ({redact_line(str(error))}).") from error
    except RuntimeError as error:
        if "cryptography" not in str(error):
            raise
        # MySQL's usual login encrypts the password by the server's key where the connection is not encrypted.
        raise MissingExtra("cryptography", extra="mariadb", needed_for="MySQL's login without TLS") from error


def _map_error(error: pymysql.Error) -> StoreError:
    number = get_error_number(error)
    # "(using password: YES)" would be taken for a secret, and the rest of the sentence with it.
    text = redact_line(_USING_PASSWORD.sub("", str(error.args[-1]))) if error.args else type(error).__name__
    if number in _MISSING_TABLE:
        return explain_missing_table(text)
    if number in _LOGIN:
        return StoreUnavailable(f"MariaDB refused the login ({text}): check the URL's user and password.")
    if number == _MISSING_DATABASE:
        return StoreUnavailable(
            f"MariaDB is there, but there is an {text[0].lower()}{text[1:]}: create it or correct the URL."
        )
    if number in _RIGHTS:
        return StoreForbidden(f"MariaDB refused it ({text}): see `pillarbox schema grants`.")
    return _map_statement_error(error, number, text)


def _map_statement_error(error: pymysql.Error, number: int, text: str) -> StoreError:
    """Map what a statement met: a refused value, a server that cannot answer now, or a mistake of ours."""
    if _is_refused(error):
        return StoreRefused(f"MariaDB refused it ({type(error).__name__} {number}: {text}).")
    if number in _CONFLICTS or number in _BUSY or number in _TEMPORARY:
        kind = StoreUnavailable if number in _TEMPORARY else StoreBusy
        return kind(f"MariaDB is not able to answer now ({text}): it will be tried again.")
    if _is_connection_lost(error):
        return _unreachable(error)
    if classify_mysql_number(number) is ErrorClass.FAILURE:
        return StoreError(f"MariaDB refused it ({type(error).__name__} {number}: {text}).")
    return StoreUnavailable(f"MariaDB is not able to answer now ({text}): it will be tried again.")


def _is_refused(error: pymysql.Error) -> bool:
    number = get_error_number(error)
    if number in _CONFLICTS or number in _BUSY or number in _TEMPORARY or _is_connection_lost(error):
        return number == _DUPLICATE
    if classify_mysql_number(number) is not ErrorClass.FAILURE:
        return False
    if isinstance(error, pymysql.IntegrityError | pymysql.DataError):
        return True
    return number > 0 and number not in _NOT_THE_ROW and not isinstance(error, pymysql.ProgrammingError)


def _unreachable(error: BaseException) -> StoreUnavailable:
    text = redact_line(str(error.args[-1])) if error.args else type(error).__name__
    if is_certificate_error(error, text):
        return StoreUnavailable(
            f"MariaDB's certificate cannot be trusted, or it has none ({text}): name its authority with ssl_ca=FILE. "
            "ssl=unverified encrypts without a check, ssl=off does neither."
        )
    return StoreUnavailable(
        f"MariaDB cannot be reached ({text or type(error).__name__}): check that it runs, and the URL's host and port."
    )


def get_error_number(error: BaseException) -> int:
    """Return MySQL's number of an error; 0 where it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _is_timeout(error: BaseException | None) -> bool:
    """Return whether an error was caused by an answer that did not come in time."""
    while error is not None:
        if isinstance(error, TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_connection_lost(error: BaseException) -> bool:
    if isinstance(error, (pymysql.InterfaceError, OSError)):
        return True
    number = get_error_number(error)
    if isinstance(error, pymysql.InternalError) and number == 0:  # packets out of step: PyMySQL's own, not the server's
        return True
    return isinstance(error, pymysql.Error) and (number in _CLIENT_ERRORS or number in CONNECTION_ENDED)
