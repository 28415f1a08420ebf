"""Runs schema plans against an SQLite file, and reads its catalog."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from pillarbox.errors import SchemaMissing, SchemaMixed
from pillarbox.names import Names
from pillarbox.stores.catalog import Difference, differences
from pillarbox.stores.migrations import (
    Migration,
    Plan,
    check_version,
    downgrade_plan,
    install_plan,
    plan,
    shipped,
    upgrade_plan,
)
from pillarbox.stores.sqlite.catalog import read_catalog
from pillarbox.stores.sqlite.driver_errors import mapped_errors
from pillarbox.stores.urls import StoreUrl, check_file

__all__ = ["SqliteSchema", "statements"]

_BUSY_TIMEOUT: Final = 10.0
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


class SqliteSchema:
    """The tables in an SQLite file. Installing creates the file; nothing else does."""

    def __init__(self, url: StoreUrl, *, names: Names, migrations: Sequence[Migration] | None = None) -> None:
        check_file(url, names)
        self._path = Path(url.path)
        self._names = names
        self._migrations = shipped("sqlite") if migrations is None else migrations

    async def version(self) -> int:
        return await asyncio.to_thread(self._read_version)

    async def install(self) -> Plan:
        return await self._run(lambda current: install_plan(self._migrations, current=current), create=True)

    async def upgrade(self, *, target: int | None = None) -> Plan:
        return await self._run(
            lambda current: upgrade_plan(self._migrations, current=current, target=target), create=True
        )

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(lambda current: downgrade_plan(self._migrations, current=current, target=target))

    async def verify(self) -> Sequence[Difference]:
        return await asyncio.to_thread(self._compare)

    async def _run(self, decide: Callable[[int], Plan], *, create: bool = False) -> Plan:
        return await asyncio.to_thread(self._change, decide, create=create)

    def _change(self, decide: Callable[[int], Plan], *, create: bool) -> Plan:
        with self._opened(create=create) as connection, _exclusive(connection):
            way = decide(_version(connection, self._names))
            _apply(connection, way, self._names)
            return way

    def _read_version(self) -> int:
        with self._opened() as connection:
            return _version(connection, self._names)

    def _compare(self) -> Sequence[Difference]:
        with self._opened() as connection:
            check_version(_version(connection, self._names), latest=len(self._migrations))
            found = read_catalog(connection, self._names)
        with closing(_connected(":memory:")) as scratch:
            _apply(scratch, plan(self._migrations, current=0, target=len(self._migrations)), self._names)
            return differences(expected=read_catalog(scratch, self._names), found=found)

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        if not create and not self._path.exists():
            raise SchemaMissing(f"There is no file {self._path}; run `pillarbox schema install`.")
        mode = "rwc" if create else "rw"
        with (
            mapped_errors(self._path),
            closing(_connected(f"{self._path.absolute().as_uri()}?mode={mode}")) as connection,
        ):
            yield connection


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit the transaction around it."""
    statement = ""
    *pieces, rest = script.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if _COMMENT.sub("", statement + rest).strip():
        yield (statement + rest).strip()


def _connected(database: str) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)


@contextmanager
def _exclusive(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that nobody else writes beside, from its first statement on."""
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # some failures have ended it already
            connection.execute("rollback")
        raise
    connection.execute("commit")


def _version(connection: sqlite3.Connection, names: Names) -> int:
    table = names.bare("schema")
    if connection.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,)).fetchone() is None:
        return 0
    version: int | None = connection.execute(f"select max(version) from {names.table('schema')}").fetchone()[0]
    if version is None:
        raise SchemaMixed(f"The table {table} is there but records no version; see docs/schema.md.")
    return version


def _apply(connection: sqlite3.Connection, way: Plan, names: Names) -> None:
    for step in way.steps:
        for statement in statements(step.sql(names)):
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                    raise
                raise SchemaMixed(
                    f"The tables are not what version {way.current} should have ({error}), so nothing was changed; "
                    "compare them with `pillarbox schema sql`."
                ) from error
