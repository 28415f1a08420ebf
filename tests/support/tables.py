"""Installed tables that one test after the other uses: installing takes half a second, emptying takes milliseconds.

A test that changes the tables themselves, such as one of migrations, makes its own.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pymysql
from psycopg import sql

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected, drop_database

__all__ = ["MariadbTables", "PostgresTables", "SqliteTables"]

_KEPT: Final = ("schema", "slot")
"""Tables whose rows come with the installation."""
_SHAPE: Final = """
    with parts(part) as (
        select concat_ws(' ', 'relation', relname, relkind, relacl, reloptions, relrowsecurity, relforcerowsecurity)
        from pg_class where relnamespace = to_regnamespace({schema})
        union all
        select concat_ws(' ', 'column', c.relname, attname, atttypid, attnotnull, attacl, pg_get_expr(adbin, adrelid))
        from pg_class c join pg_attribute a on attrelid = c.oid and attnum > 0 and not attisdropped
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = to_regnamespace({schema}) and c.relkind in ('r', 'p', 'v')
        union all
        select concat_ws(' ', 'constraint', conname, conrelid, pg_get_constraintdef(oid), convalidated)
        from pg_constraint where connamespace = to_regnamespace({schema})
        union all
        select concat_ws(' ', 'trigger', tgname, tgenabled, tgrelid)
        from pg_trigger t join pg_class c on c.oid = tgrelid
        where c.relnamespace = to_regnamespace({schema}) and not tgisinternal
        union all
        select concat_ws(' ', 'function', proname, proacl, md5(prosrc))
        from pg_proc where pronamespace = to_regnamespace({schema})
        union all
        select concat_ws(' ', 'schema', nspacl) from pg_namespace where nspname = {schema}
    )
    select md5(string_agg(part, ',' order by part)) from parts
"""
"""Everything that a test may have changed about the tables but their rows."""

_EMPTY: Final = """
    do $$
    declare
        relation record;
    begin
        for relation in
            select c.oid::regclass as name, relkind from pg_class c
            where relnamespace = to_regnamespace({schema}) and relkind in ('r', 'p', 'S') and not relispartition
              and relname <> all ({kept})
        loop
            if relation.relkind = 'S' then
                perform setval(relation.name, 1, false);
            else
                execute format('delete from %s', relation.name);
            end if;
        end loop;
    end $$
"""


class PostgresTables:
    """Schemas of a PostgreSQL database, each with the tables of one prefix and dialect."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)

    @contextmanager
    def lend(
        self,
        *,
        prefix: str = "pillarbox_",
        dialect: PostgresDialect = "native",
        purpose: str = "",
        prepare: Callable[[Names], object] = lambda _: None,
    ) -> Iterator[Names]:
        """Lend the names of empty tables. `prepare` is called for new ones: the same for all tests of a purpose."""
        free = self._free[prefix, dialect, purpose]
        schema, shape = free.pop() if free else self._create(prefix, dialect, prepare)
        try:
            yield Names(schema, prefix)
        finally:
            if self._empty(Names(schema, prefix), shape):
                free.append((schema, shape))
            else:
                self._drop(schema)

    def close(self) -> None:
        """Drop all schemas."""
        for free in self._free.values():
            for schema, _ in free:
                self._drop(schema)
        self._free.clear()

    def _create(self, prefix: str, dialect: PostgresDialect, prepare: Callable[[Names], object]) -> tuple[str, str]:
        names = Names(f"s_{secrets.token_hex(6)}", prefix)
        assert names.schema is not None
        with self._connect() as connection:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(names.schema)))
            separator = "&" if "?" in self._url else "?"
            url = f"{self._url}{separator}dialect={dialect}"
            _install(url, names)
            prepare(names)
            return names.schema, self._describe(connection, names.schema)

    def _empty(self, names: Names, shape: str) -> bool:
        """Remove all rows; false if the test changed more than rows, or left a lock behind."""
        assert names.schema is not None
        kept = sql.Literal([f"{names.prefix}{table}" for table in _KEPT])
        statement = sql.SQL(_EMPTY).format(schema=sql.Literal(names.schema), kept=kept)
        with self._connect() as connection:
            if self._describe(connection, names.schema) != shape:
                return False
            try:
                connection.execute(statement)
            except psycopg.errors.LockNotAvailable:
                return False
            return True

    @staticmethod
    def _describe(connection: psycopg.Connection[Any], schema: str) -> str:
        row = connection.execute(sql.SQL(_SHAPE).format(schema=sql.Literal(schema))).fetchone()
        assert row is not None
        return str(row[0])

    def _drop(self, schema: str) -> None:
        with self._connect() as connection:
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))

    def _connect(self) -> psycopg.Connection[Any]:
        # A transaction that a test left open becomes an error here, not a hang.
        return psycopg.connect(self._url, autocommit=True, options="-c lock_timeout=10s -c synchronous_commit=off")


class MariadbTables:
    """Databases of a MariaDB or MySQL server, each with the tables of one prefix."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    @contextmanager
    def lend(
        self, *, prefix: str = "pillarbox_", purpose: str = "", prepare: Callable[[str], object] = lambda _: None
    ) -> Iterator[str]:
        """Lend the URL of a database with empty tables. `prepare` is called with that of a new one."""
        free = self._free[prefix, purpose]
        database, shape = free.pop() if free else self._create(prefix, prepare)
        try:
            yield self._get_url(database)
        finally:
            if self._empty(database, prefix, shape):
                free.append((database, shape))
            else:
                drop_database(self._url, database)

    def close(self) -> None:
        """Drop all databases."""
        for free in self._free.values():
            for database, _ in free:
                drop_database(self._url, database)
        self._free.clear()

    def _create(self, prefix: str, prepare: Callable[[str], object]) -> tuple[str, str]:
        database = f"pb_{secrets.token_hex(8)}"
        url = self._get_url(database)
        with closing(connected(self._url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database `{database}`")
        _install(url, Names(prefix=prefix))
        prepare(url)
        with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
            return database, self._describe(cursor, database)

    def _empty(self, database: str, prefix: str, shape: str) -> bool:
        """Remove all rows; false if the test changed more than rows, or left a lock behind."""
        kept = {f"{prefix}{table}" for table in _KEPT}
        with closing(connected(self._get_url(database), autocommit=True)) as connection, connection.cursor() as cursor:
            if self._describe(cursor, database) != shape:
                return False
            cursor.execute("set innodb_lock_wait_timeout = 5, lock_wait_timeout = 5")
            cursor.execute("show full tables where table_type = 'BASE TABLE'")
            tables = [name for name, _ in cursor.fetchall() if name not in kept]
            try:
                for table in tables:
                    cursor.execute(f"delete from `{table}`")
            except pymysql.err.OperationalError:
                return False
            return True

    @staticmethod
    def _describe(cursor: Any, database: str) -> str:
        parts = []
        cursor.execute("show full tables")
        for name, kind in cursor.fetchall():
            cursor.execute(f"show create {'view' if kind == 'VIEW' else 'table'} `{name}`")
            parts.append(re.sub(r" AUTO_INCREMENT=\d+", "", str(cursor.fetchone()[1])))
        cursor.execute("show triggers")
        parts += sorted(map(str, cursor.fetchall()))
        for rights in ("schema_privileges", "table_privileges", "column_privileges"):
            cursor.execute(f"select * from information_schema.{rights} where table_schema = %s", (database,))
            parts += sorted(map(str, cursor.fetchall()))
        return "\n".join(parts)

    def _get_url(self, database: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()


class SqliteTables:
    """Files with installed tables, copied for each test."""

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="pillarbox-tables-"))

    def install(self, path: Path, *, prefix: str = "pillarbox_") -> None:
        """Make `path` a file with empty tables."""
        template = self._folder / f"{prefix}.db"
        if not template.exists():
            new = template.with_suffix(".new")
            _install(f"sqlite:///{new}", Names(prefix=prefix))
            with closing(sqlite3.connect(new)) as connection:
                connection.execute("pragma wal_checkpoint(truncate)")
            new.rename(template)
        shutil.copyfile(template, path)

    def close(self) -> None:
        """Remove the templates."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _install(url: str, names: Names) -> None:
    with ThreadPoolExecutor(1) as thread:  # the caller may run in a loop
        thread.submit(asyncio.run, open_schema(parse_store_url(url), names=names).install()).result()
