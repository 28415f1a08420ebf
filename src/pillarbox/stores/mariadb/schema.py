"""Runs schema plans against MariaDB and MySQL, and reads their catalog.

MySQL commits after every statement that changes a table, so a plan is no transaction there. The scripts can be run
again: what was begun and not finished is finished by the next run, and the version is recorded last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

import pymysql

from pillarbox.errors import SchemaMixed, StoreUnavailable
from pillarbox.names import Names
from pillarbox.stores.catalog import Catalog, Difference, differences
from pillarbox.stores.mariadb.catalog import NO_TABLE, as_temporary, read_catalog, with_view
from pillarbox.stores.mariadb.driver import connected, mapped_errors, number_of
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
from pillarbox.stores.scripts import split
from pillarbox.stores.urls import StoreUrl

__all__ = ["MariadbSchema"]

_TIMEOUT: Final = 60.0
_MIXED: Final = frozenset({1050, 1051, 1054, 1060, 1061, 1091, 1146})
"""A table, column or index that is there already, or is not."""


class MariadbSchema:
    """The tables in a MariaDB or MySQL database.

    Changing them waits at most `lock_timeout` for those who use them, because writers queue up behind the wait.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        names: Names,
        migrations: Sequence[Migration] | None = None,
        lock_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._url = url
        self._names = names
        self._migrations = shipped("mariadb") if migrations is None else migrations
        self._lock_timeout = lock_timeout

    async def version(self) -> int:
        return await asyncio.to_thread(self._read_version)

    async def install(self) -> Plan:
        return await self._run(lambda current: install_plan(self._migrations, current=current))

    async def upgrade(self, *, target: int | None = None) -> Plan:
        return await self._run(lambda current: upgrade_plan(self._migrations, current=current, target=target))

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(lambda current: downgrade_plan(self._migrations, current=current, target=target))

    async def verify(self) -> Sequence[Difference]:
        return await asyncio.to_thread(self._compare)

    async def _run(self, decide: Callable[[int], Plan]) -> Plan:
        return await asyncio.to_thread(self._change, decide)

    def _change(self, decide: Callable[[int], Plan]) -> Plan:
        with self._opened() as connection, _turn(connection, self._names):
            way = decide(self._version(connection))
            if way.target > way.current == 0:
                self._create_database(connection)
            _fetch(connection, f"set session lock_wait_timeout = {max(1, int(self._lock_timeout.total_seconds()))}")
            self._apply(connection, way)
            return way

    def _create_database(self, connection: Any) -> None:
        """Asks first: `if not exists` would demand the right to create one even where it exists."""
        schema = self._names.schema
        if schema is None:
            return
        known = "select 1 from information_schema.schemata where schema_name = %s"
        with connection.cursor() as cursor:
            if not cursor.execute(known, (schema,)):
                cursor.execute(f"create database if not exists `{schema}` character set utf8mb4 collate utf8mb4_bin")

    def _apply(self, connection: Any, way: Plan) -> None:
        try:
            for step in way.steps:
                for statement in split(step.sql(self._names, quote="`")):
                    _fetch(connection, statement)
        except pymysql.Error as error:
            if number_of(error) not in _MIXED:
                raise
            raise SchemaMixed(
                f"The tables are not what version {way.current} should have ({error.args[-1]}); "
                "compare them with `pillarbox schema sql`."
            ) from error

    def _read_version(self) -> int:
        with self._opened() as connection:
            return self._version(connection)

    def _version(self, connection: Any) -> int:
        table = self._names.table("schema", quote="`")
        try:
            ((version,),) = _fetch(connection, f"select max(version) from {table}")
        except pymysql.Error as error:
            if number_of(error) in (NO_TABLE, 1049):
                return 0
            raise
        # Before the first version is recorded, its last statement has made the table: it is begun anew.
        return int(version or 0)

    def _compare(self) -> Sequence[Difference]:
        with self._opened() as connection:
            check_version(self._version(connection), latest=len(self._migrations))
            found = read_catalog(lambda sql: _fetch(connection, sql), self._names)
            return differences(expected=self._expected(connection), found=found)

    def _expected(self, connection: Any) -> Catalog:
        """The catalog of a fresh installation. Its view cannot be temporary, and is told from the tables."""
        way = plan(self._migrations, current=0, target=len(self._migrations))
        for step in way.steps:
            for statement in split(step.sql(self._names, quote="`")):
                if (temporary := as_temporary(statement)) is not None:
                    _fetch(connection, temporary)
        return with_view(read_catalog(lambda sql: _fetch(connection, sql), self._names), self._names)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with mapped_errors(), closing(connected(self._url.dsn, timeout=_TIMEOUT)) as connection:
            yield connection


@contextmanager
def _turn(connection: Any, names: Names) -> Iterator[None]:
    """Wait until nobody else changes the tables of that database and prefix."""
    what = f"concat_ws('.', 'pillarbox', coalesce({_text(names.schema)}, database()), {_text(names.prefix)})"
    ((got,),) = _fetch(connection, f"select get_lock(sha1({what}), {int(_TIMEOUT) - 5})")
    if got != 1:
        raise StoreUnavailable("Somebody else has been changing the tables for a minute; try again when that is done.")
    try:
        yield
    finally:
        _fetch(connection, f"select release_lock(sha1({what}))")


def _text(name: str | None) -> str:
    return "null" if name is None else f"'{name}'"


def _fetch(connection: Any, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
