"""Connections of an SQLite store, each used by one thread at a time: the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pillarbox.clock import Clock
from pillarbox.contracts.store import Order, Selection
from pillarbox.errors import (
    ConfigError,
    PillarboxError,
    StoreBusy,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from pillarbox.message import Names
from pillarbox.redaction import redact_line
from pillarbox.stores.migrations import explain_missing_table
from pillarbox.stores.sql import Statements
from pillarbox.stores.sqlite.sharing import SharedFiles
from pillarbox.stores.sync_sql.database import SelectionParameters
from pillarbox.stores.sync_sql.rows import encode_json, to_microseconds
from pillarbox.stores.unreadable import is_text

__all__ = [
    "Database",
    "Synchronous",
    "Transaction",
    "build_statements",
    "can_write",
    "get_code",
    "map_errors",
    "to_reading_uri",
]

T = TypeVar("T")
Synchronous = Literal["full", "normal"]
"""`full` waits for the disk at a commit. `normal` may lose the last commits when the machine loses power."""

_OLDEST_SQLITE: Final = (3, 35)
_CACHED_STATEMENTS: Final = 256
_RETRY_INTERVAL: Final = 0.01
_CHECKPOINT_INTERVAL: Final = 0.25
_LONGEST_LOG: Final = 10_000
"""Pages of the write-ahead log at which the writer itself makes a checkpoint, if no other was made before."""
_NOT_OPEN: Final = "The SQLite store is not open; call open() first."
_RANDOM: Final = "abs(random() % 4503599627370496)"
"""A number below 2^52."""
_NOT_UTF8: Final = "Could not decode to UTF-8"
_LIST: Final = re.compile(r"\bin (:\w+)")
_EFFECTIVE_IDS: Final = os.access in os.supports_effective_ids

_PRIMARY_CODE: Final = 0xFF
"""The low byte of a result code is its family."""
_LOCKED: Final = (StoreBusy, "{path} stayed locked by another writer ({error}): look for a long transaction.")
_UNWRITABLE: Final = (
    StoreUnavailable,
    "{path} cannot be written ({error}): check the rights on the file and its folder.",
)
_BROKEN: Final = (StoreBusy, "{path} cannot be used now ({error}): check the disk; it will be tried again.")
_REFUSED: Final = (StoreRefused, "SQLite refused it ({error}).")
_NOT_THE_ROW: Final = ("no such", "near ", "incomplete input", "unrecognized token", "ambiguous", "cannot ", "no query")
"""Beginnings of general errors that lie in the statement or the schema. All others lie in the values."""
_ERRORS: Final[Mapping[int, tuple[type[PillarboxError], str]]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_FULL: _BROKEN,
    sqlite3.SQLITE_IOERR: _BROKEN,
    sqlite3.SQLITE_NOMEM: _BROKEN,
    sqlite3.SQLITE_PROTOCOL: _BROKEN,
    sqlite3.SQLITE_INTERRUPT: _BROKEN,
    sqlite3.SQLITE_CONSTRAINT: _REFUSED,
    sqlite3.SQLITE_TOOBIG: _REFUSED,
    sqlite3.SQLITE_MISMATCH: _REFUSED,
    sqlite3.SQLITE_NOTADB: (ConfigError, "{path} is not an SQLite database: correct the path."),
    sqlite3.SQLITE_CORRUPT: (StoreError, "{path} is damaged ({error}): restore it from a backup."),
}
_REFUSALS: Final = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
"""A rule, a trigger, or a value that a function does not take."""


def build_statements(names: Names) -> Statements:
    """Read the statements of this store."""
    return Statements("pillarbox.stores.sqlite", names, shared="pillarbox.stores.sync_sql", translate=_translate)


def _translate(sql: str) -> str:
    """Take each list as one JSON value: SQLite binds no lists."""
    return _LIST.sub(r"in (select value from json_each(\1))", sql).replace("/* random */", _RANDOM)


class Database:
    """One SQLite file: transactions that write run one after the other, and beside them those that only read.

    Reads have a connection of their own. A large settlement is SQLite's work alone, for which Python's lock is free:
    meanwhile the next messages are read and decoded. Checkpoints, which copy the write-ahead log into the file, are
    made over that connection too, so that no write waits for them.

    `procedures` are statements that the connection which writes begins with.
    """

    def __init__(
        self,
        path: Path,
        *,
        statements: Statements,
        clock: Clock,
        synchronous: Synchronous,
        busy_timeout: timedelta,
        procedures: Sequence[str] = (),
        shared: SharedFiles | None = None,
        reads_only: bool = False,
    ) -> None:
        self.path = path
        self.shared: Final = shared
        """Threads that many stores share; None if each connection has its own."""
        self._statements = statements
        self._clock = clock
        self.synchronous: Synchronous = synchronous
        """Level of writes that must not be lost."""
        seconds = busy_timeout.total_seconds()
        self._writer = _Connection(
            path, busy_timeout=seconds, shared=shared, procedures=procedures, reads_only=reads_only
        )
        self._reader = _Connection(path, busy_timeout=seconds, shared=shared, is_reader=True, reads_only=reads_only)
        self._session: object = None
        self._checkpoint: asyncio.Task[None] | None = None
        self._checkpoint_at = 0.0

    async def open(self) -> None:
        if self._session is None:
            try:
                await self._writer.open()  # first: it switches the file to its write-ahead log
                await self._reader.open()
            except BaseException:
                await self.close()
                raise
            self._session = object()

    async def close(self) -> None:
        self._session = None
        closing = [
            done for connection in (self._reader, self._writer) if (done := connection.start_close()) is not None
        ]
        if closing:
            # Cancelling the caller must not leave the file open.
            await asyncio.shield(asyncio.gather(*closing))

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function with the connection that writes, outside any transaction."""
        return await self._writer.call(lambda: function(self._writer.get(None)))

    async def query(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        """Run one statement that only reads."""
        return await self.read(lambda tx: tx.query(name, values))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work in one snapshot, without a lock."""
        return await self._run(self._reader, "begin", None, work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in one write transaction, on disk when this returns."""
        return await self._run(self._writer, "begin immediate", self.synchronous, work)

    async def write_relaxed(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a write transaction that does not wait for the disk: losing it costs only a repeat."""
        return await self._run(self._writer, "begin immediate", "normal", work)

    async def write_at_once(self, name: str, values: Mapping[str, object]) -> list[Any] | None:
        """Run one statement that is a relaxed write transaction of its own; None if it was refused and changed nothing.

        Values are bound as they are.
        """
        rows = await self._writer.call(self._write_at_once, self._statements[name], values)
        self._start_checkpoint()
        return rows

    # One connection writes: its calls wait for each other, and a file drops no connection.
    write_heartbeat = write_relaxed

    def use_version(self, version: int) -> None:
        """Run the statements for tables of this version from now on."""
        self._statements.use_version(version)

    def limit_answers(self, *, lease: timedelta) -> None:
        """Do nothing: the busy timeout is the limit."""

    async def _run(
        self, connection: _Connection, begin: str, level: Synchronous | None, work: Callable[[Transaction], T]
    ) -> T:
        result: T = await connection.call(self._transaction, connection, begin, level, work)
        if connection is self._writer:
            self._start_checkpoint()
        return result

    def _start_checkpoint(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._checkpoint_at and (self._checkpoint is None or self._checkpoint.done()):
            self._checkpoint_at = now + _CHECKPOINT_INTERVAL
            self._checkpoint = asyncio.create_task(self._make_checkpoint())

    async def _make_checkpoint(self) -> None:
        def work() -> None:
            self._reader.get(None).execute("pragma wal_checkpoint(passive)").fetchall()

        with suppress(sqlite3.Error, StoreUnavailable):  # a full disk, or a close meanwhile: the writer will do it
            await self._reader.call(work)

    def _transaction(
        self, used: _Connection, begin: str, level: Synchronous | None, work: Callable[[Transaction], T]
    ) -> T:
        with map_errors(self.path):
            connection = used.get(level)
            connection.execute(begin)
            try:
                now = to_microseconds(self._clock.now())
                result = work(Transaction(connection, self._statements, now=now, session=self._session))
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        return result

    def _write_at_once(self, sql: str, values: Mapping[str, object]) -> list[Any] | None:
        with map_errors(self.path):
            connection = self._writer.get("normal")
            try:
                return connection.execute(sql, {**values, "now": to_microseconds(self._clock.now())}).fetchall()
            except sqlite3.Error as error:
                if get_code(error) in _REFUSALS:
                    return None
                raise


class _Connection:
    """A connection in a thread of its own, or in shared ones. `is_reader`: nothing can be written over it."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout: float,
        shared: SharedFiles | None = None,
        is_reader: bool = False,
        procedures: Sequence[str] = (),
        reads_only: bool = False,
    ) -> None:
        self._path = path
        self._reads_only = reads_only
        self._shared = shared
        self._busy_timeout = busy_timeout
        self._is_reader = is_reader
        self._procedures = procedures
        self._thread: Executor | None = None
        self._connection: sqlite3.Connection | None = None
        self._level = ""

    async def open(self) -> None:
        """Connect. Opening twice is harmless."""
        if self._thread is None:
            if self._shared is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="pillarbox-sqlite")
            else:
                self._thread = self._shared.open_executor()
            await self.call(self._connect)

    def start_close(self) -> asyncio.Future[None] | None:
        """Disconnect when all earlier calls are done, and end the thread; None if it is not open."""
        thread, self._thread = self._thread, None
        if thread is None:
            return None
        done = asyncio.wrap_future(thread.submit(self._disconnect))
        thread.shutdown(wait=False)
        done.add_done_callback(lambda _: thread.shutdown())
        return done

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread of the connection."""
        if self._thread is None:
            raise StoreUnavailable(_NOT_OPEN)
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def get(self, level: Synchronous | None) -> sqlite3.Connection:
        """Return the connection, set to wait for the disk as `level` says, if it says anything."""
        if self._connection is None:
            raise StoreUnavailable(_NOT_OPEN)
        if level is not None and level != self._level:
            self._connection.execute(f"pragma synchronous = {level}")
            self._level = level
        return self._connection

    def _connect(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: use a Python with SQLite 3.35 or newer.")
        is_fixed = self._reads_only and not can_write(self._path)
        _check_path(self._path, reads_only=self._reads_only)
        with map_errors(self._path):
            self._connection = sqlite3.connect(
                to_reading_uri(self._path) if is_fixed else f"{self._path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=self._busy_timeout,
                isolation_level=None,
                cached_statements=_CACHED_STATEMENTS,
                check_same_thread=self._shared is None,  # shared threads take turns, one call at a time
            )
            # With a write-ahead log readers and the writer do not wait for each other.
            if not is_fixed and _switch_to_wal(self._connection, until=time.monotonic() + self._busy_timeout) != "wal":
                raise ConfigError(
                    f"SQLite cannot keep a write-ahead log for {self._path}: put the file on a local disk."
                )
            if self._is_reader:
                self._connection.execute("pragma query_only = on")
            self._connection.execute(f"pragma wal_autocheckpoint = {_LONGEST_LOG}")
            self._connection.create_function("casefolded", 1, _casefold, deterministic=True)
            for procedure in self._procedures:
                self._connection.execute(procedure)
        self._level = ""

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Transaction:
    """Transaction of the shared protocol, with one time for the whole of it."""

    def __init__(self, connection: sqlite3.Connection, statements: Statements, *, now: int, session: object) -> None:
        self._connection = connection
        self._statements = statements
        self.now = now
        self.session = session
        """Identity of the connection: a cursor of an older one is not valid."""

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
        parameters = SelectionParameters(fold_column="casefolded(cast({} as blob))", fold=str.casefold)
        where = parameters.build_conditions(selection)
        sql = self._statements.fill_count(name, where) if counted else self._statements.fill(name, where, order=order)
        return self._fetch(sql, self._bind({**values, **parameters.values}))

    def union(self, name: str, each: Sequence[Mapping[str, object]]) -> list[Any]:
        """Return the rows of one statement for several sets of values: here a round trip costs nothing."""
        sql = self._statements[name]
        return [row for values in each for row in self._fetch(sql, self._bind(values))]

    def _fetch(self, sql: str, values: Mapping[str, object]) -> list[Any]:
        """Return the rows. Text that is no UTF-8 comes with stand-ins for its bytes, and stops no other row."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if _NOT_UTF8 not in str(error):
                raise
        # The slow way, and only where it is needed: SQLite calls it for every text of every row.
        self._connection.text_factory = _decode_text
        try:
            return self._connection.execute(sql, values).fetchall()
        finally:
            self._connection.text_factory = str

    def execute(self, name: str, values: Mapping[str, object] = {}) -> int:
        return self._connection.execute(self._statements[name], self._bind(values)).rowcount

    def _bind(self, values: Mapping[str, object]) -> dict[str, object]:
        """Encode lists as the JSON that `json_each` takes apart again."""
        bound = {name: encode_json(value) if type(value) is list else value for name, value in values.items()}
        for name, value in bound.items():
            if type(value) is str and not is_text(value):
                bound[name] = value.encode("utf-8", "surrogateescape")  # as it came from the file
        return {**bound, "now": self.now}


def can_write(path: Path) -> bool:
    """Return whether this user may change the file, and make the files that SQLite needs beside it."""
    return os.access(path, os.W_OK, effective_ids=_EFFECTIVE_IDS) and os.access(
        path.absolute().parent, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE_IDS
    )


def to_reading_uri(path: Path) -> str:
    """Return the URI that opens a file which this user can only read.

    A write-ahead log needs a file beside it that readers write too. Without a log nobody writes now, and the file is
    read as it is.
    """
    log = path.with_name(f"{path.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"


def _check_path(path: Path, *, reads_only: bool = False) -> None:
    """Raise `ConfigError` for a path that is not one to open. SQLite would find out only at the first write."""
    if path.is_file():
        if not reads_only and not os.access(path, os.W_OK, effective_ids=_EFFECTIVE_IDS):
            raise ConfigError(
                f"{path} cannot be written by this user: give it the right to write the file and its folder."
            )
        return
    if str(path) == ":memory:":
        raise ConfigError("An SQLite store needs a file, which its writers share: use memory:// for one without.")
    if path.exists():
        raise ConfigError(f"{path} is not a file: correct the path of the SQLite store.")
    raise ConfigError(f"There is no SQLite file {path}: correct the path, or make it with `pillarbox schema install`.")


def _switch_to_wal(connection: sqlite3.Connection, *, until: float) -> str:
    """Return the journal mode after the switch. The first switch needs the file alone, and SQLite does not wait."""
    while True:
        try:
            mode: str = connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_RETRY_INTERVAL)
        else:
            return mode


def _decode_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _casefold(text: bytes | None) -> str | None:
    """Remove letter case in every alphabet: SQLite's own `lower` handles ASCII only. Takes bytes, which may be any."""
    return None if text is None else text.decode("utf-8", "replace").casefold()


@contextmanager
def map_errors(path: Path) -> Iterator[None]:
    """Map the driver's errors to ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _map_error(error, path) from error
    except (OverflowError, UnicodeError) as error:  # the driver cannot even bind the value
        raise StoreRefused(f"SQLite cannot take a value ({redact_line(str(error))}).") from error


def _map_error(error: sqlite3.Error, path: Path) -> PillarboxError:
    code = get_code(error)
    reason = redact_line(str(error))
    if code in _ERRORS:
        kind, sentence = _ERRORS[code]
        return kind(sentence.format(path=path, error=reason))
    if str(error).startswith("no such table"):
        return explain_missing_table(reason, where=f" in {path}")
    is_refused = code == sqlite3.SQLITE_ERROR and not str(error).startswith(_NOT_THE_ROW)
    kind = StoreRefused if is_refused and isinstance(error, sqlite3.OperationalError) else StoreError
    return kind(f"SQLite refused it ({type(error).__name__}: {reason}).")


def get_code(error: sqlite3.Error) -> int:
    """Return the result code of an error, without what is particular in it."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & _PRIMARY_CODE
