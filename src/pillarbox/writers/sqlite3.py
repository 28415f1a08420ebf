"""Writes through a `sqlite3` connection."""

from __future__ import annotations

import sqlite3
from typing import Any, ClassVar, Final, Protocol

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import statements
from pillarbox.writers.inbox import Did, perform, program
from pillarbox.writers.statements import SAVEPOINT, Statement, Style

__all__ = ["AUTOCOMMITS", "Sqlite3Writer", "SqliteState", "would_autocommit"]

AUTOCOMMITS: Final = (
    "This SQLite connection is in autocommit mode and outside a transaction, so the message would be committed on "
    "its own: execute BEGIN first, or open the connection without isolation_level=None."
)


class SqliteState(Protocol):
    """What every flavour of SQLite connection tells about itself."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def isolation_level(self) -> str | None: ...


def would_autocommit(tx: SqliteState, *, autocommit: object = None) -> bool:
    """A statement executed now would commit by itself. `autocommit` is the attribute that Python 3.12 added."""
    if tx.in_transaction:
        return False
    return autocommit is True or (tx.isolation_level is None and autocommit is not False)


class Sqlite3Writer:
    """Joins the transaction of a `sqlite3.Connection`, or the one its next statement opens."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: sqlite3.Connection) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        self._check()
        inserts = statements.insert(batch, Style.QMARK)
        if len(inserts) > 1:
            self._insert_all(inserts)
            return
        for statement in inserts:
            self._tx.execute(statement.sql, statement.parameters)

    def ask(self, ask: InboxAsk) -> Any:
        self._check()
        return perform(program(ask, Style.QMARK), self._execute)

    def _execute(self, statement: Statement) -> Did:
        cursor = self._tx.cursor()
        cursor.row_factory = None
        cursor.execute(statement.sql, statement.parameters)
        return Did(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())

    def _insert_all(self, inserts: statements.Statements) -> None:
        if not self._tx.in_transaction:
            # Releasing a savepoint that stands outside a transaction would commit it.
            self._tx.execute(f"begin {self._tx.isolation_level}")
        self._tx.execute(SAVEPOINT.set)
        try:
            for statement in inserts:
                self._tx.execute(statement.sql, statement.parameters)
        except BaseException:
            if self._tx.in_transaction:
                self._tx.execute(SAVEPOINT.undo)
                self._tx.execute(SAVEPOINT.release)
            raise
        self._tx.execute(SAVEPOINT.release)

    def _check(self) -> None:
        if would_autocommit(self._tx, autocommit=getattr(self._tx, "autocommit", None)):
            raise NotInTransaction(AUTOCOMMITS)
