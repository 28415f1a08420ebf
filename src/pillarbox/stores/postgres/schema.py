"""Runs schema plans against PostgreSQL, and reads its catalogs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from pillarbox.errors import SchemaMixed
from pillarbox.names import TABLES, Names
from pillarbox.stores.catalog import Catalog, Difference, differences
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
from pillarbox.stores.postgres.connection import mapped_errors
from pillarbox.stores.postgres.drivers import Connection, Refusal, driver_called
from pillarbox.stores.sql import Statements
from pillarbox.stores.urls import StoreUrl

__all__ = ["PostgresSchema"]

_CONNECT_TIMEOUT: Final = 10.0


class PostgresSchema:
    """The tables in a PostgreSQL database.

    Changing them needs their exclusive lock; it is waited for at most `lock_timeout`, because writers queue
    up behind the wait.
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
        self._driver = driver_called(url.driver)
        self._names = names
        self._migrations = shipped("postgres") if migrations is None else migrations
        self._lock_timeout = lock_timeout

    async def version(self) -> int:
        async with self._transaction() as connection:
            return await self._version(connection)

    async def install(self) -> Plan:
        return await self._run(lambda current: install_plan(self._migrations, current=current))

    async def upgrade(self, *, target: int | None = None) -> Plan:
        return await self._run(lambda current: upgrade_plan(self._migrations, current=current, target=target))

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(lambda current: downgrade_plan(self._migrations, current=current, target=target))

    async def verify(self) -> Sequence[Difference]:
        async with self._transaction() as connection:
            check_version(await self._version(connection), latest=len(self._migrations))
            schema = await connection.fetchval(
                "select relnamespace from pg_class where oid = to_regclass($1)", self._names.table("schema")
            )
            found = await self._catalog(connection, schema)
            return differences(expected=await self._expected(connection), found=found)

    async def _run(self, decide: Callable[[int], Plan]) -> Plan:
        async with self._transaction(keep=True) as connection:
            await _take_turn(connection, self._names.schema, self._names.prefix)
            way = decide(await self._version(connection))
            await connection.execute(f"set local lock_timeout = {int(self._lock_timeout.total_seconds() * 1000)}")
            if way.target > way.current:
                await self._create_schema(connection)
            await self._apply(connection, way, self._names)
            return way

    async def _create_schema(self, connection: Connection) -> None:
        """Asks first: `if not exists` would demand the right to create one even where it exists."""
        schema = self._names.schema
        if schema is not None and await connection.fetchval("select to_regnamespace($1) is null", f'"{schema}"'):
            await _take_turn(connection, schema, "")
            await connection.execute(f'create schema if not exists "{schema}"')

    async def _version(self, connection: Connection) -> int:
        table = self._names.table("schema")
        if await connection.fetchval("select to_regclass($1) is null", table):
            return 0
        version: int | None = await connection.fetchval(f"select max(version) from {table}")
        if version is None:
            raise SchemaMixed(f"The table {table} is there but records no version; see docs/schema.md.")
        return version

    async def _expected(self, connection: Connection) -> Catalog:
        """The catalog of a fresh installation, made of temporary tables that the rollback takes away."""
        scratch = Names(schema="pg_temp", prefix=self._names.prefix)
        await self._apply(connection, plan(self._migrations, current=0, target=len(self._migrations)), scratch)
        return await self._catalog(connection, await connection.fetchval("select pg_my_temp_schema()"))

    async def _catalog(self, connection: Connection, schema: int) -> Catalog:
        """Read with the schema as search path, so that definitions are printed without it."""
        name = await connection.fetchval("select nspname from pg_namespace where oid = $1", schema)
        await connection.execute("select set_config('search_path', quote_ident($1), true)", name)
        describe = Statements("pillarbox.stores.postgres", self._names)["describe_schema"]
        rows = await connection.fetch(describe, schema, [self._names.bare(table) for table in TABLES])
        return {item: _unqualified(text, schema=name, prefix=self._names.prefix) for item, text in rows}

    async def _apply(self, connection: Connection, way: Plan, names: Names) -> None:
        try:
            if names.schema is not None and way.steps:  # for `drop index`, whose name is written without a schema
                await connection.execute(f'set local search_path = "{names.schema}"')
            for step in way.steps:
                await connection.execute(step.sql(names))
        except self._driver.errors as error:
            refusal = self._driver.refusal(error)
            if refusal is None or not _is_mixed(refusal):
                raise
            raise SchemaMixed(
                f"The tables are not what version {way.current} should have ({refusal.message}), so nothing was "
                "changed; compare them with `pillarbox schema sql`."
            ) from error

    @asynccontextmanager
    async def _transaction(self, *, keep: bool = False) -> AsyncIterator[Connection]:
        """Read committed, whatever the server's default: who waited for its turn must see what the other did."""
        with mapped_errors(self._driver):
            connection = await self._driver.connect(self._url.dsn, timeout=_CONNECT_TIMEOUT)
            try:
                await connection.execute("begin isolation level read committed")
                yield connection
                await connection.execute("commit" if keep else "rollback")
            finally:
                await connection.close()


def _unqualified(definition: str, *, schema: str, prefix: str) -> str:
    """On one line, and without the schema in front of our names: some definitions have it, others do not."""
    ours = rf'(?<!\w)"?(?:{re.escape(schema)}|pg_temp)"?\."?({re.escape(prefix)}\w*)"?'
    bare = rf'"({re.escape(prefix)}\w*)"'
    return " ".join(re.sub(bare, r"\1", re.sub(ours, r"\1", definition)).split())


async def _take_turn(connection: Connection, schema: str | None, prefix: str) -> None:
    """Wait until nobody else changes the tables of that schema and prefix; ends with the transaction."""
    what = "concat_ws('.', 'pillarbox', coalesce($1::text, current_schema()), $2::text)"
    await connection.execute(f"select pg_advisory_xact_lock(hashtextextended({what}, 0))", schema, prefix)


def _is_mixed(refusal: Refusal) -> bool:
    """Whether a statement did not fit the tables; a right that is missing is another matter."""
    return refusal.state.startswith(("42", "2BP01")) and refusal.state != "42501"
