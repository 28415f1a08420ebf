"""Schema of MariaDB and MySQL: runs migration plans, and reads the catalog.

MySQL commits after every statement that changes a table, so a plan is no transaction there. Each step is recorded as
begun before its first statement, and the version last. The scripts can be run again: the next command finishes or
undoes what an earlier one began, before it does anything else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

import pymysql

from pillarbox.durations import check_duration
from pillarbox.errors import ConfigError, SchemaMixed, StoreForbidden, StoreUnavailable
from pillarbox.message import TABLES, Names
from pillarbox.mysql_errors import CONFLICTS, LOCK_TIMEOUTS
from pillarbox.stores.catalog import Catalog, Difference, IdCounter, compare_catalogs
from pillarbox.stores.compatibility import FIRST_DECLARED, SchemaVersion
from pillarbox.stores.lock_wait import DEFAULT_LOCK_TIMEOUT, DEFAULT_PATIENCE, LockWait, Report, ignore_report
from pillarbox.stores.mariadb.checks import counter_from_rows
from pillarbox.stores.mariadb.connection import build_statements, connect, get_error_number, map_errors
from pillarbox.stores.migrations import (
    Interrupted,
    Migration,
    Plan,
    build_plan,
    check_version,
    check_whole,
    find_interrupted,
    load_migrations,
    plan_downgrade,
    plan_install,
    plan_nothing,
    plan_recovery,
    plan_upgrade,
    split_script,
)
from pillarbox.stores.urls import StoreUrl

__all__ = ["MariadbSchema"]

_NO_TABLE: Final = 1146
_NO_RIGHT_ON_DATABASE: Final = 1044

_TABLE_OPTION: Final = re.compile(r"(?:ENGINE|DEFAULT CHARSET|COLLATE)=\w+")
"""What matters of a table's options. Counters, statistics and encryption are the administrator's."""
_INTRODUCER: Final = re.compile(r"(?<![\w'])_[a-z][a-z0-9]*(?=')")
"""Character set before a text, such as `_utf8mb4'held'`. MySQL may write another one after each change of the table."""
_COLUMN: Final = re.compile(r"`(?P<name>[^`]+)` (?P<definition>.*)")
_INDEX: Final = re.compile(r"(?:UNIQUE )?KEY `(?P<name>[^`]+)` (?P<definition>.*)")
_CONSTRAINT: Final = re.compile(r"(?:CONSTRAINT `[^`]+` )?(?P<definition>(?:PRIMARY KEY|CHECK|FOREIGN KEY) .*)")
_CREATE_TABLE: Final = re.compile(r"create table if not exists", re.IGNORECASE)
_NAMED_CHECK: Final = re.compile(r"\bconstraint\s+\S+\s+check\b", re.IGNORECASE)
_TABLE_STATEMENTS: Final = ("create table", "alter table", "create index", "drop index", "drop table")

Fetch = Callable[[str], list[Any]]

_TIMEOUT: Final = 60.0
_MIXED_SCHEMA: Final = frozenset({1050, 1051, 1054, 1146})
"""A table that is there already, or a table or column that is not."""
_DONE_BEFORE: Final = frozenset({1060, 1061, 1091, 1826, 3821, 3822, 3940})
"""A column, index or check to add that is there, or one to drop that is not. `schema verify` sees one that differs."""


class MariadbSchema:
    """Tables in a MariaDB or MySQL database.

    A change waits for transactions that use them, and writers queue up behind its wait. So it waits for `lock_timeout`
    at most, a second at least, and tries again for as long as its `patience` lasts. `report` takes what it does
    meanwhile.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        names: Names,
        migrations: Sequence[Migration] | None = None,
        lock_timeout: timedelta = DEFAULT_LOCK_TIMEOUT,
        patience: timedelta = DEFAULT_PATIENCE,
        report: Report = ignore_report,
    ) -> None:
        self._url = url
        self._names = names
        self._migrations = load_migrations("mysql") if migrations is None else migrations
        check_duration(lock_timeout, "lock_timeout")
        check_duration(patience, "patience")
        self._wait = LockWait(lock_timeout=lock_timeout, patience=patience, report=report)
        self._report = report

    async def version(self) -> int:
        return await asyncio.to_thread(self._read_version)

    async def install(self) -> Plan:
        return await self._run(
            lambda found: (
                plan_nothing(self._migrations, found)
                or plan_install(self._migrations, current=found.version, commits_each=True)
            )
        )

    async def upgrade(self, *, target: int | None = None) -> Plan:
        return await self._run(
            lambda found: (
                plan_nothing(self._migrations, found, target=target)
                or plan_upgrade(self._migrations, current=found.version, target=target, commits_each=True)
            )
        )

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(
            lambda found: plan_downgrade(self._migrations, current=found.version, target=target, commits_each=True)
        )

    async def change_lookups(self, *, wanted: bool) -> Sequence[str]:  # noqa: ARG002 - as every `Schema`
        raise ConfigError("A MariaDB or MySQL store always has its indexes for lookups: leave the option out.")

    async def verify(self) -> Sequence[Difference]:
        return await asyncio.to_thread(self._compare)

    async def _run(self, decide: Callable[[SchemaVersion], Plan]) -> Plan:
        return await asyncio.to_thread(self._change, decide)

    def _change(self, decide: Callable[[SchemaVersion], Plan]) -> Plan:
        with self._open() as connection, _lock_schema(connection, self._names):
            found, interrupted = self._version(connection)
            plan = plan_recovery(self._migrations, decide(found), interrupted, commits_each=True)
            if interrupted is not None:
                self._report(f"A change of the tables was interrupted in version {interrupted.version}: finishing it.")
            if plan.target > plan.current == 0:
                self._create_database(connection)
            seconds = max(1, int(self._wait.lock_timeout.total_seconds()))
            _fetch(connection, f"set session lock_wait_timeout = {seconds}")
            self._apply(connection, plan)
            return plan

    def _create_database(self, connection: Any) -> None:
        """Create the database if it is missing. `if not exists` alone needs the right to create one in any case."""
        schema = self._names.schema
        if schema is None:
            return
        known = "select 1 from information_schema.schemata where schema_name = %s"
        with connection.cursor() as cursor:
            if not cursor.execute(known, (schema,)):
                cursor.execute(f"create database if not exists `{schema}` character set utf8mb4 collate utf8mb4_bin")

    def _apply(self, connection: Any, plan: Plan) -> None:
        try:
            for step in plan.steps:
                if plan.target > plan.current > 0:
                    self._report(f"{step.version:04}_{step.name}")
                for statement in split_script(step.sql(self._names, quote="`")):
                    self._execute(connection, statement)
        except pymysql.Error as error:
            if get_error_number(error) not in _MIXED_SCHEMA:
                raise
            raise SchemaMixed(
                f"The tables are not what version {plan.current} should have ({error.args[-1]}); "
                "compare them with `pillarbox schema sql`."
            ) from error

    def _execute(self, connection: Any, statement: str) -> None:
        """Run a statement, again if a lock was not to be had."""
        self._wait.begin()
        while True:
            try:
                _run_unless_done(connection, statement)
                return
            except pymysql.Error as error:
                if get_error_number(error) not in CONFLICTS | LOCK_TIMEOUTS:
                    raise
                pause = self._wait.next_pause(str(error.args[-1]))
                if pause is None:
                    raise
            time.sleep(pause)

    def _read_version(self) -> int:
        with self._open() as connection:
            return self._version(connection)[0].version

    def _version(self, connection: Any) -> tuple[SchemaVersion, Interrupted | None]:
        """Return the version of the tables, and the step that was begun and did not end."""
        table = self._names.table("schema", quote="`")
        try:
            rows = _fetch(connection, f"select version from {table}")
        except pymysql.Error as error:
            if get_error_number(error) in (_NO_TABLE, 1049):
                return SchemaVersion.build(0), None
            raise
        version, interrupted = find_interrupted(row[0] for row in rows)
        if version == 0:  # the first step creates this table first, and records its version last
            return SchemaVersion.build(0), Interrupted(1, is_down=False)
        if version < FIRST_DECLARED or interrupted is not None:
            return SchemaVersion.build(version), interrupted
        ((version, readable_from, writable_from),) = _fetch(
            connection, build_statements(self._names)["schema_declared"]
        )
        return SchemaVersion.build(version, readable_from, writable_from), None

    def _compare(self) -> Sequence[Difference]:
        with self._open() as connection:
            version, interrupted = self._version(connection)
            check_whole(interrupted)
            check_version(version.version, latest=len(self._migrations))
            found = _read_catalog(lambda sql: _fetch(connection, sql), self._names)
            counter = self._read_counter(connection)  # before temporary tables hide the real ones
            expected = self._build_expected(connection)
            return (*compare_catalogs(expected=expected, found=found), *counter.list_differences())

    def _read_counter(self, connection: Any) -> IdCounter:
        values = {"schema": self._names.schema, "outbox": self._names.bare("outbox")}
        with connection.cursor() as cursor:
            cursor.execute(build_statements(self._names)["inspect_counter"], values)
            return counter_from_rows(cursor.fetchall())

    def _build_expected(self, connection: Any) -> Catalog:
        """Return the catalog of a fresh installation. A view cannot be temporary, so it is derived from the tables."""
        plan = build_plan(self._migrations, current=0, target=len(self._migrations))
        for step in plan.steps:
            for statement in split_script(step.sql(self._names, quote="`")):
                if (temporary := _to_temporary(statement)) is not None:
                    _create_temporary(connection, temporary)
        tables = _read_catalog(lambda sql: _fetch(connection, sql), self._names)
        # The views of the real tables are no part of a fresh installation.
        return _add_views({item: text for item, text in tables.items() if not item.startswith("view ")}, self._names)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with map_errors(), closing(connect(self._url.dsn, timeout=_TIMEOUT)) as connection:
            yield connection


@contextmanager
def _lock_schema(connection: Any, names: Names) -> Iterator[None]:
    """Hold a lock so that only one process changes the tables of that database and prefix."""
    schema, prefix = _to_literal(names.schema), _to_literal(names.prefix)
    what = f"concat_ws('.', 'pillarbox', coalesce({schema}, database()), {prefix})"
    ((got,),) = _fetch(connection, f"select get_lock(sha2({what}, 256), {int(_TIMEOUT) - 5})")
    if got != 1:
        raise StoreUnavailable("Somebody else has been changing the tables for a minute; try again when that is done.")
    try:
        yield
    finally:
        _fetch(connection, f"select release_lock(sha2({what}, 256))")


def _to_literal(name: str | None) -> str:
    return "null" if name is None else f"'{name}'"


def _fetch(connection: Any, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _create_temporary(connection: Any, statement: str) -> None:
    try:
        _fetch(connection, statement)
    except pymysql.Error as error:
        if get_error_number(error) != _NO_RIGHT_ON_DATABASE:
            raise
        raise StoreForbidden(
            "This login may not create temporary tables, and the tables are compared with such: "
            "use the login that installed them."
        ) from error


def _run_unless_done(connection: Any, statement: str) -> None:
    """Run a statement of a migration. What a run that was cut off has added or dropped already is left as it is."""
    try:
        _fetch(connection, statement)
    except pymysql.Error as error:
        if get_error_number(error) not in _DONE_BEFORE:
            raise


def _read_catalog(fetch: Fetch, names: Names) -> Catalog:
    """Return tables with their columns, keys and checks, indexes, and the columns of each view."""
    items: dict[str, str] = {}
    for name, created in _read_definitions(fetch, names):
        is_view = not created.startswith(("CREATE TABLE", "CREATE TEMPORARY TABLE"))
        bare = name.removeprefix(names.prefix)
        items |= {f"view {name}": _read_columns(fetch, names, bare)} if is_view else _parse_table(name, created)
    return items


def _add_views(tables: Catalog, names: Names) -> Catalog:
    """Add the views that belong to the tables, by the columns that each leaves out or adds."""
    columns = {
        table: [item.rpartition(".")[2] for item in tables if item.startswith(f"column {names.bare(table)}.")]
        for table in ("outbox", "history", "inbox")
    }
    views = {
        "messages": [*_leave_out(columns["outbox"], "blocked_key", "due_at", "fingerprint"), "state"],
        "shown_outbox": _leave_out(columns["outbox"], "payload"),
        "shown_history": _leave_out(columns["history"], "payload"),
        "shown_inbox": _leave_out(columns["inbox"], "message"),
        "own_inbox": columns["inbox"],
    }
    return {**tables, **{f"view {names.bare(view)}": ", ".join(shown) for view, shown in views.items()}}


def _leave_out(columns: Sequence[str], *hidden: str) -> Sequence[str]:
    return [column for column in columns if column not in hidden]


def _to_temporary(statement: str) -> str | None:
    """Turn a statement into one for a temporary table; None if it is about no table.

    A temporary table hides the one of its name from this session alone. So a fresh installation can be compared
    without a second database. Its checks have no names: on MySQL no two of a database may share one.
    """
    if not statement.lower().startswith(_TABLE_STATEMENTS):
        return None
    return _NAMED_CHECK.sub("check", _CREATE_TABLE.sub("create temporary table", statement))


def _read_definitions(fetch: Fetch, names: Names) -> Iterator[tuple[str, str]]:
    for table in sorted(TABLES):
        try:
            _, created, *_ = fetch(f"show create table {names.table(table, quote='`')}")[0]
        except pymysql.Error as error:
            if get_error_number(error) != _NO_TABLE:
                raise
        else:
            yield names.bare(table), created


def _read_columns(fetch: Fetch, names: Names, view: str) -> str:
    return ", ".join(row[0] for row in fetch(f"show columns from {names.table(view, quote='`')}"))


def _parse_table(table: str, created: str) -> Mapping[str, str]:
    first, *lines, last = created.split("\n")
    del first
    items = {f"table {table}": " ".join(_TABLE_OPTION.findall(last))}
    for line in lines:
        text = _INTRODUCER.sub("", line.strip().removesuffix(","))
        if found := _COLUMN.fullmatch(text):
            items[f"column {table}.{found['name']}"] = found["definition"]
        elif found := _INDEX.fullmatch(text):
            items[f"index {found['name']} on {table}"] = found["definition"]
        elif found := _CONSTRAINT.fullmatch(text):
            items[f"constraint on {table}: {found['definition']}"] = "valid"
    return items
