"""Schema of an SQLite file: runs migration plans, and reads the catalog."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from pillarbox.errors import ConfigError, SchemaMissing, SchemaMixed
from pillarbox.message import TABLES, Names
from pillarbox.stores.catalog import Catalog, Difference, IdCounter, compare_catalogs, normalize_sql
from pillarbox.stores.compatibility import FIRST_DECLARED, SchemaVersion
from pillarbox.stores.lock_wait import Report, ignore_report
from pillarbox.stores.migrations import (
    Migration,
    Plan,
    build_plan,
    check_version,
    load_migrations,
    plan_downgrade,
    plan_install,
    plan_nothing,
    plan_upgrade,
)
from pillarbox.stores.sqlite.connection import build_statements, can_write, map_errors, to_reading_uri
from pillarbox.stores.urls import StoreUrl, check_sqlite_url

__all__ = ["SqliteSchema", "split_statements"]

_INDEXES_AND_TRIGGERS: Final = (
    "select name from sqlite_master where type = ? and tbl_name = ? and sql is not null order by name"
)
_BUSY_TIMEOUT: Final = 10.0
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


class SqliteSchema:
    """Tables in an SQLite file. Installing creates the file; nothing else does."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        names: Names,
        migrations: Sequence[Migration] | None = None,
        report: Report = ignore_report,
    ) -> None:
        check_sqlite_url(url, names)
        self._path = Path(url.path)
        self._names = names
        self._migrations = load_migrations("sqlite") if migrations is None else migrations
        self._report = report

    async def version(self) -> int:
        return await asyncio.to_thread(self._read_version)

    async def install(self) -> Plan:
        return await self._run(
            lambda found: (
                plan_nothing(self._migrations, found) or plan_install(self._migrations, current=found.version)
            ),
            create=True,
        )

    async def upgrade(self, *, target: int | None = None) -> Plan:
        return await self._run(
            lambda found: (
                plan_nothing(self._migrations, found, target=target)
                or plan_upgrade(self._migrations, current=found.version, target=target)
            ),
            create=True,
        )

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(lambda found: plan_downgrade(self._migrations, current=found.version, target=target))

    async def change_lookups(self, *, wanted: bool) -> Sequence[str]:  # noqa: ARG002 - as every `Schema`
        raise ConfigError("An SQLite store always has its indexes for lookups: leave the option out.")

    async def verify(self) -> Sequence[Difference]:
        return await asyncio.to_thread(self._compare)

    async def _run(self, decide: Callable[[SchemaVersion], Plan], *, create: bool = False) -> Plan:
        return await asyncio.to_thread(self._change, decide, create=create)

    def _change(self, decide: Callable[[SchemaVersion], Plan], *, create: bool) -> Plan:
        with self._open(create=create) as connection, _lock_writers(connection):
            plan = decide(_read_version(connection, self._names))
            for step in plan.steps if plan.target > plan.current > 0 else ():
                self._report(f"{step.version:04}_{step.name}")
            _apply(connection, plan, self._names)
            return plan

    def _read_version(self) -> int:
        with self._open(reads_only=True) as connection:
            return _read_version(connection, self._names).version

    def _compare(self) -> Sequence[Difference]:
        with self._open(reads_only=True) as connection:
            check_version(_read_version(connection, self._names).version, latest=len(self._migrations))
            found = _read_catalog(connection, self._names)
            last, highest = connection.execute(build_statements(self._names)["inspect_counter"]).fetchone()
        counter = IdCounter(last=last, highest=highest)
        with closing(_connect(":memory:")) as scratch:
            _apply(scratch, build_plan(self._migrations, current=0, target=len(self._migrations)), self._names)
            expected = _read_catalog(scratch, self._names)
            return (*compare_catalogs(expected=expected, found=found), *counter.list_differences())

    @contextmanager
    def _open(self, *, create: bool = False, reads_only: bool = False) -> Iterator[sqlite3.Connection]:
        if not create and not self._path.exists():
            raise SchemaMissing(f"There is no file {self._path}; run `pillarbox schema install`.")
        if create:
            _create_file(self._path)
        uri = f"{self._path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        if reads_only and not can_write(self._path):
            uri = to_reading_uri(self._path)
        with map_errors(self._path), closing(_connect(uri)) as connection:
            yield connection


def _create_file(path: Path) -> None:
    """Create the file, for its owner alone, if there is none. SQLite gives `-wal` and `-shm` the same rights."""
    with suppress(OSError):  # it is there, or SQLite will say why it cannot be
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script one by one: `executescript` would commit the transaction around it."""
    statement = ""
    *pieces, rest = script.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if _COMMENT.sub("", statement + rest).strip():
        yield (statement + rest).strip()


def _connect(database: str) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)


@contextmanager
def _lock_writers(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction that locks out other writers from its first statement on."""
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # some failures have ended it already
            connection.execute("rollback")
        raise
    connection.execute("commit")


def _read_version(connection: sqlite3.Connection, names: Names) -> SchemaVersion:
    table = names.bare("schema")
    if connection.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,)).fetchone() is None:
        return SchemaVersion.build(0)
    sql = build_statements(names)
    version: int | None = connection.execute(sql["schema_version"]).fetchone()[0]
    if version is None:
        raise SchemaMixed(f"The table {table} is there but records no version; see docs/schema.md.")
    if version < FIRST_DECLARED:
        return SchemaVersion.build(version)
    return SchemaVersion.build(*connection.execute(sql["schema_declared"]).fetchone())


def _apply(connection: sqlite3.Connection, plan: Plan, names: Names) -> None:
    for step in plan.steps:
        for statement in split_statements(step.sql(names)):
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                    raise
                raise SchemaMixed(
                    f"The tables are not what version {plan.current} should have ({error}), so nothing was changed; "
                    "compare them with `pillarbox schema sql`."
                ) from error


def _read_catalog(connection: sqlite3.Connection, names: Names) -> Catalog:
    """Return tables with columns, keys and checks, indexes, views and triggers, however their SQL was formatted."""
    items: dict[str, str] = {}
    for table in sorted(names.bare(name) for name in TABLES):
        for kind, sql in connection.execute("select type, sql from sqlite_master where name = ?", (table,)).fetchall():
            items |= _read_table(connection, table, sql) if kind == "table" else {f"{kind} {table}": normalize_sql(sql)}
        items |= _read_indexes_and_triggers(connection, table)
    return items


def _read_table(connection: sqlite3.Connection, table: str, sql: str) -> Mapping[str, str]:
    text = normalize_sql(sql)
    traits = [trait for trait in ("without rowid", "strict", "autoincrement") if re.search(rf"\b{trait}\b", text)]
    items = {f"table {table}": " ".join(["table", *traits])}
    for _, column, kind, not_null, default, key_place, _ in connection.execute(f'pragma table_xinfo("{table}")'):
        parts = [kind.lower()]
        parts += ["not null"] if not_null else []
        parts += [f"primary key {key_place}"] if key_place else []
        parts += [f"default {normalize_sql(default)}"] if default is not None else []
        items[f"column {table}.{column}"] = " ".join(parts)
    return items | {f"constraint on {table}: {check}": "valid" for check in _find_check_constraints(text)}


def _read_indexes_and_triggers(connection: sqlite3.Connection, table: str) -> Mapping[str, str]:
    """Return indexes and triggers of a table. Those that SQLite creates for a key are part of the key."""
    items: dict[str, str] = {}
    for kind in ("index", "trigger"):
        for (name,) in connection.execute(_INDEXES_AND_TRIGGERS, (kind, table)).fetchall():
            (sql,) = connection.execute("select sql from sqlite_master where name = ?", (name,)).fetchone()
            items[f"{kind} {name} on {table}"] = normalize_sql(sql)
    return items


def _find_check_constraints(text: str) -> Iterator[str]:
    """Yield the check constraints of a normalized CREATE TABLE, each to its closing bracket."""
    for start in re.finditer(r"\bcheck \(", text):
        depth = 0
        for place in range(start.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            if depth == 0:
                yield text[start.start() : place + 1]
                break
