"""The connections of a MariaDB store, each used by one thread at a time: the event loop never waits for the server."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

from pillarbox.clock import Clock
from pillarbox.errors import StoreUnavailable
from pillarbox.names import TABLES, Names
from pillarbox.protocols import Selection
from pillarbox.stores.mariadb.driver import CONFLICTS, Sql, connected, is_over, mapped_errors, number_of
from pillarbox.stores.mariadb.selection import MariadbParameters
from pillarbox.stores.sql import Statements
from pillarbox.stores.stepwise.rows import microseconds

__all__ = ["Database", "Transaction"]

T = TypeVar("T")

_NOW: Final = Sql("timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))")
"""The server's clock, whatever the session's time zone is."""
_COMMENT: Final = re.compile(r"--[^\n]*\n")
_NONE: Final = Sql("(null)")
_PAYLOAD: Final = "case when %(payloads)s then payload when payload is not null then '' end"
_READING: Final = (
    "set transaction isolation level repeatable read",
    "start transaction with consistent snapshot, read only",
)
_WRITING: Final = ("start transaction",)
_TRIES: Final = 5
"""How often a transaction is begun that others were in the way of."""


class Transaction:
    """As the protocol says. What a selection finds in order to change it is `locked`: people act at the same time."""

    def __init__(
        self, connection: Any, statements: Statements, *, clock: Clock | None, session: object, locked: bool
    ) -> None:
        self._locked = locked
        self._connection = connection
        self._statements = statements
        self._now: int | Sql = _NOW if clock is None else microseconds(clock.now())
        self.session = session
        """Changes whenever what was read may have to be read again: a failover can take the ids back."""

    @property
    def now(self) -> int:
        if isinstance(self._now, int):
            return self._now
        ((now,),) = self._fetched(f"select {_NOW.text}", {})
        return int(now)

    def rows(self, name: str, values: Mapping[str, object] = {}, *, selection: Selection | None = None) -> list[Any]:
        if selection is None:
            return self._fetched(self._statements[name], self._bound(values))
        where, chosen = MariadbParameters().selected(selection)
        sql = self._statements.filled(name, where)
        if self._locked:
            sql += "   for update"
        elif not values.get("payloads", True):  # a viewer has no right even to name that column
            sql = sql.replace(_PAYLOAD, "''")
        return self._fetched(sql, self._bound({**values, **chosen}))

    def united(self, name: str, each: list[dict[str, object]]) -> list[Any]:
        """The rows of one statement for several sets of values, in one snapshot: one question, and its answers."""
        text = _COMMENT.sub("", self._statements[name])
        parts = [self._connection.cursor().mogrify(text, self._bound(values)) for values in each]
        return self._fetched(" union all ".join(parts), None)

    def run(self, name: str, values: Mapping[str, object] = {}) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._statements[name], self._bound(values)))

    def _fetched(self, sql: str, values: Mapping[str, object] | None) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def _bound(self, values: Mapping[str, object]) -> dict[str, object]:
        """A list goes as it is written in SQL; that of none cannot be empty there."""
        bound = {name: _NONE if value == [] else value for name, value in values.items()}
        return {**bound, "now": self._now}


class Database:
    """A few connections, and as many threads."""

    def __init__(self, dsn: str, *, names: Names, clock: Clock | None, connections: int, timeout: timedelta) -> None:
        self._dsn = dsn
        self._names = names
        self._statements = Statements("pillarbox.stores.mariadb", names, quote="`")
        self._clock = clock
        self._connections = connections
        self._timeout = timeout.total_seconds()
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[Any] = []
        self._all: set[Any] = set()
        self._guard = threading.Lock()
        self._session: object = None

    def where(self) -> dict[str, object]:
        """Our tables, as information_schema names them."""
        return {"schema": self._names.schema, "tables": [self._names.bare(table) for table in TABLES]}

    async def open(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connections, thread_name_prefix="pillarbox-mariadb")
            try:
                await self._in_thread(self._connect_all)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            # Cancelling the caller must not leave connections open.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._end, threads))

    async def rows(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        return await self.quickly(lambda tx: tx.rows(name, values))

    async def quickly(self, work: Callable[[Transaction], T]) -> T:
        """Statements that only read, each with a snapshot of its own."""
        return await self._in_thread(self._transaction, (), work)

    async def reading(self, work: Callable[[Transaction], T]) -> T:
        return await self._in_thread(self._transaction, _READING, work)

    async def writing(self, work: Callable[[Transaction], T]) -> T:
        return await self._in_thread(self._transaction, _WRITING, work)

    relaxed = writing

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._threads is None:
            raise StoreUnavailable("The MariaDB store is not open; call open() first.")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _transaction(self, begin: tuple[str, ...], work: Callable[[Transaction], T]) -> T:
        with mapped_errors():
            for _ in range(_TRIES - 1):
                try:
                    return self._tried(begin, work)
                except Exception as error:
                    if not begin or number_of(error) not in CONFLICTS:
                        raise
            return self._tried(begin, work)

    def _tried(self, begin: tuple[str, ...], work: Callable[[Transaction], T]) -> T:
        connection = self._borrowed()
        try:
            for statement in begin:
                connection.query(statement)
            transaction = Transaction(
                connection, self._statements, clock=self._clock, session=self._session, locked=begin is _WRITING
            )
            result = work(transaction)
            if begin:
                connection.commit()
        except BaseException as error:
            self._undo(connection, ended=is_over(error), begun=bool(begin))
            raise
        self._give_back(connection)
        return result

    def _undo(self, connection: Any, *, ended: bool, begun: bool) -> None:
        """What cannot be rolled back by word is by hanging up."""
        if not ended:
            try:
                if begun:
                    connection.rollback()
                self._give_back(connection)
            except Exception:
                ended = True
        if ended:
            self._drop(connection)

    def _borrowed(self) -> Any:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _connect(self) -> Any:
        connection = connected(self._dsn, timeout=self._timeout)
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

    def _end(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown()
        with self._guard:
            connections, self._all, self._idle = self._all, set(), []
        for connection in connections:
            with suppress(Exception):
                connection.close()
