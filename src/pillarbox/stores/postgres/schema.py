"""The tables in a PostgreSQL database: creating, changing and verifying them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from pillarbox.errors import SchemaMixed
from pillarbox.message import TABLES, Names
from pillarbox.stores.catalog import Catalog, Difference, compare_catalogs
from pillarbox.stores.migrations import (
    Migration,
    Plan,
    build_plan,
    check_version,
    load_migrations,
    plan_downgrade,
    plan_install,
    plan_upgrade,
)
from pillarbox.stores.postgres.checks import read_counter
from pillarbox.stores.postgres.connection import map_errors
from pillarbox.stores.postgres.driver import Connection, Refusal, load_driver
from pillarbox.stores.sql import Statements
from pillarbox.stores.urls import StoreUrl

__all__ = ["PostgresSchema"]

_CONNECT_TIMEOUT: Final = 10.0
_TURN: Final = 0.2
"""Seconds between two looks at whether another process still changes lookup indexes."""
_LOOKUPS: Final = {
    "history_message_idx": ("history", "(message_id)"),
    "history_status_idx": ("history", "(status, status_at, id)"),
    "history_corr_idx": ("history", "(left(correlation_id, 64))"),
    "outbox_corr_idx": ("outbox", "(left(correlation_id, 64))"),
}
"""Indexes that an installation may have or not, with their tables and columns: see docs/schema.md."""

_WITHOUT_INDEX: Final = """
    select nspname, p.relname
      from pg_inherits i
      join pg_class p on p.oid = i.inhrelid
      join pg_namespace n on n.oid = p.relnamespace
     where i.inhparent = to_regclass($1)
       and not exists (select from pg_index x join pg_inherits a on a.inhrelid = x.indexrelid
                        where x.indrelid = p.oid and a.inhparent = to_regclass($2))
     order by p.oid
"""
"""Partitions of a table that lack a part of its index."""

_PARTITIONS: Final = "partitions"
"""Name of the migration that partitions history."""
_LARGE: Final = 64 * 1024 * 1024
"""Bytes of a history that is not read under a lock. Less is read in a moment."""
_INSPECT_HISTORY: Final = "select pg_relation_size(oid) from pg_class where oid = to_regclass($1) and relkind = 'r'"
_BOUND_HISTORY: Final = (
    # Ids that replace others are in no order, and far above all others.
    """update pillarbox_history set id = nextval(pg_get_serial_sequence('pillarbox_outbox', 'id'))
        where id >= 4503599627370496""",
    """do $$
    declare
        history constant regclass := 'pillarbox_history';
        bound constant text := (select relname from pg_class where oid = history) || '_bound_chk';
        highest bigint := pg_sequence_last_value(pg_get_serial_sequence('pillarbox_outbox', 'id')::regclass);
    begin
        highest := greatest(highest, (select max(id) from pillarbox_history), 0);
        execute format('alter table %s drop constraint if exists %I', history, bound);
        execute format('alter table %s add constraint %I check (id < %s) not valid', history, bound,
                       (highest / 1000000 + 10) * 1000000);
    end
    $$""",
    "alter table pillarbox_history validate constraint pillarbox_history_bound_chk",
)
"""Statements that prove that no id of history is above a bound, ten million ids ahead. The last reads all rows, which
takes a while, and stops nobody."""


class PostgresSchema:
    """`Schema` on PostgreSQL.

    A change needs the exclusive lock of its tables. It waits for it at most `lock_timeout`, because writers queue up
    behind the wait.
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
        self._driver = load_driver(url.driver)
        self._names = names
        self._migrations = load_migrations("postgresql") if migrations is None else migrations
        self._lock_timeout = lock_timeout

    async def version(self) -> int:
        async with self._transaction() as connection:
            return await self._read_version(connection)

    async def install(self) -> Plan:
        return await self._run(lambda current: plan_install(self._migrations, current=current))

    async def upgrade(self, *, target: int | None = None) -> Plan:
        async with self._bound_history(target=target):
            return await self._run(lambda current: plan_upgrade(self._migrations, current=current, target=target))

    async def downgrade(self, *, target: int) -> Plan:
        return await self._run(lambda current: plan_downgrade(self._migrations, current=current, target=target))

    async def verify(self) -> Sequence[Difference]:
        async with self._transaction() as connection:
            check_version(await self._read_version(connection), latest=len(self._migrations))
            schema = await connection.fetchval(
                "select relnamespace from pg_class where oid = to_regclass($1)", self._names.table("schema")
            )
            found = await self._read_catalog(connection, schema)
            counter = await read_counter(
                connection, Statements("pillarbox.stores.postgres", self._names), names=self._names
            )
            expected = _choose_lookups(await self._build_expected(connection), found, self._names)
            return (*compare_catalogs(expected=expected, found=found), *counter.list_differences())

    async def change_lookups(self, *, wanted: bool) -> Sequence[str]:
        """Create the indexes for lookups, or drop them; return those that changed. Neither stops a writer for long."""
        changed = []
        async with self._connect() as connection:
            check_version(await self._read_version(connection), latest=len(self._migrations))
            await _wait_for_turn(connection, self._names.schema, self._names.prefix)
            await connection.execute("set statement_timeout = 0")  # a role's own limit is for other statements
            for index in _LOOKUPS:
                is_valid = await connection.fetchval(
                    "select indisvalid from pg_index where indexrelid = to_regclass($1)", self._names.table(index)
                )
                if is_valid is wanted or (is_valid is None and not wanted):
                    continue
                change = self._change_partitioned if _LOOKUPS[index][0] == "history" else self._change_lookup
                await change(connection, index, wanted=wanted, is_there=is_valid is not None)
                changed.append(self._names.bare(index))
        return changed

    @asynccontextmanager
    async def _bound_history(self, *, target: int | None) -> AsyncIterator[None]:
        """Prove which ids a large history has, before it becomes a partition: else it is read under an exclusive lock.

        The proof is a constraint, which takes no ids far above today's. So it does not outlive an upgrade that fails.
        """
        history = self._names.table("history")
        constraint = f'"{self._names.bare("history_bound_chk")}"'
        async with self._connect() as connection:
            row = await connection.fetchrow(_INSPECT_HISTORY, history)
            is_needed = row is not None and row[0] > _LARGE and self._adds_partitions(target)
            if is_needed:
                await connection.execute("set statement_timeout = 0")
                await connection.execute(f"set lock_timeout = {int(self._lock_timeout.total_seconds() * 1000)}")
                for statement in _BOUND_HISTORY:
                    await connection.execute(self._names.qualify(statement))
        try:
            yield
        except BaseException:
            if is_needed:
                async with self._connect() as connection:
                    await connection.execute(f"alter table {history} drop constraint if exists {constraint}")
            raise

    def _adds_partitions(self, target: int | None) -> bool:
        return any(one.name == _PARTITIONS for one in self._migrations[:target])

    async def _change_lookup(self, connection: Connection, index: str, *, wanted: bool, is_there: bool) -> None:
        if is_there:  # not wanted, or left over by a build that was interrupted
            await connection.execute(f"drop index concurrently {self._names.table(index)}")
        if wanted:
            await connection.execute(_build_lookup(index, self._names, how="concurrently"))

    async def _change_partitioned(self, connection: Connection, index: str, *, wanted: bool, is_there: bool) -> None:
        """Change an index of all partitions. It is built on one after the other, and valid when all have it.

        A partition that is added meanwhile has it from the beginning. What concerns the whole needs a lock for a
        moment.
        """
        whole = self._names.table(index)
        table, columns = _LOOKUPS[index]
        rows = await connection.fetch(_WITHOUT_INDEX, self._names.table(table), whole) if is_there else []
        if is_there and not (wanted and rows):  # not wanted, or not valid although no partition lacks it
            await _execute_between(connection, f"drop index {whole}")
            is_there = False
        if not wanted:
            return
        if not is_there:
            await _execute_between(connection, _build_lookup(index, self._names, only="only "))
            rows = await connection.fetch(_WITHOUT_INDEX, self._names.table(table), whole)
        for schema, partition in rows:
            part = f"{partition}{index.removeprefix(table)}"[:63]
            await connection.execute(f'drop index concurrently if exists "{schema}"."{part}"')
            await connection.execute(f'create index concurrently "{part}" on "{schema}"."{partition}" {columns}')
            await _execute_between(connection, f'alter index {whole} attach partition "{schema}"."{part}"')

    async def _run(self, make_plan: Callable[[int], Plan]) -> Plan:
        async with self._transaction(commit=True) as connection:
            await _lock_tables(connection, self._names.schema, self._names.prefix)
            plan = make_plan(await self._read_version(connection))
            await connection.execute(f"set local lock_timeout = {int(self._lock_timeout.total_seconds() * 1000)}")
            if plan.target > plan.current:
                await self._create_schema(connection)
            await self._apply(connection, plan, self._names)
            return plan

    async def _create_schema(self, connection: Connection) -> None:
        """Create the configured schema where it is missing."""
        schema = self._names.schema
        # `if not exists` alone would demand the right to create a schema even where it exists.
        if schema is not None and await connection.fetchval("select to_regnamespace($1) is null", f'"{schema}"'):
            await _lock_tables(connection, schema, "")
            await connection.execute(f'create schema if not exists "{schema}"')

    async def _read_version(self, connection: Connection) -> int:
        table = self._names.table("schema")
        if await connection.fetchval("select to_regclass($1) is null", table):
            return 0
        version: int | None = await connection.fetchval(f"select max(version) from {table}")
        if version is None:
            raise SchemaMixed(f"The table {table} is there but records no version; see docs/schema.md.")
        return version

    async def _build_expected(self, connection: Connection) -> Catalog:
        """Read the catalog of a fresh installation: of temporary tables, which the rollback removes."""
        scratch = Names(schema="pg_temp", prefix=self._names.prefix)
        await self._apply(connection, build_plan(self._migrations, current=0, target=len(self._migrations)), scratch)
        for index in _LOOKUPS:
            await connection.execute(_build_lookup(index, scratch))
        return await self._read_catalog(connection, await connection.fetchval("select pg_my_temp_schema()"))

    async def _read_catalog(self, connection: Connection, schema: int) -> Catalog:
        """Read the catalog, with the schema as search path so that definitions are printed without it."""
        name = await connection.fetchval("select nspname from pg_namespace where oid = $1", schema)
        await connection.execute("select set_config('search_path', quote_ident($1), true)", name)
        describe = Statements("pillarbox.stores.postgres", self._names)["describe_schema"]
        rows = await connection.fetch(describe, schema, [self._names.bare(table) for table in TABLES])
        return {item: _remove_schema(text, schema=name, prefix=self._names.prefix) for item, text in rows}

    async def _apply(self, connection: Connection, plan: Plan, names: Names) -> None:
        try:
            if names.schema is not None and plan.steps:  # for `drop index`, whose name is written without a schema
                await connection.execute(f'set local search_path = "{names.schema}"')
            for step in plan.steps:
                await connection.execute(step.sql(names))
        except self._driver.errors as error:
            refusal = self._driver.parse_refusal(error)
            if refusal is None or not _is_mixed(refusal):
                raise
            raise SchemaMixed(
                f"The tables are not what version {plan.current} should have ({refusal.message}), so nothing was "
                "changed; compare them with `pillarbox schema sql`."
            ) from error

    @asynccontextmanager
    async def _transaction(self, *, commit: bool = False) -> AsyncIterator[Connection]:
        """Open a connection for one transaction.

        It is read committed whatever the server's default: after the wait for the lock it must see what the other did.
        """
        async with self._connect() as connection:
            await connection.execute("begin isolation level read committed")
            yield connection
            await connection.execute("commit" if commit else "rollback")

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        with map_errors(self._driver):
            connection = await self._driver.connect(self._url.dsn, timeout=_CONNECT_TIMEOUT)
            try:
                yield connection
            finally:
                await connection.close()


def _remove_schema(definition: str, *, schema: str, prefix: str) -> str:
    """Return the definition on one line, without the schema before our names: some have it, others do not."""
    ours = rf'(?<!\w)"?(?:{re.escape(schema)}|pg_temp)"?\."?({re.escape(prefix)}\w*)"?'
    bare = rf'"({re.escape(prefix)}\w*)"'
    return " ".join(re.sub(bare, r"\1", re.sub(ours, r"\1", definition)).split())


def _build_lookup(index: str, names: Names, *, how: str = "", only: str = "") -> str:
    table, columns = _LOOKUPS[index]
    return f"create index {how} if not exists {names.bare(index)} on {only}{names.table(table)} {columns}"


async def _execute_between(connection: Connection, statement: str) -> None:
    """Run a statement whose lock stops others, as soon as nobody is in its way. They wait for a moment at most."""
    await connection.execute(
        f"""
        do $do$
        begin
            set local lock_timeout = '100ms';
            for try in 1 .. 600 loop
                begin
                    {statement};
                    return;
                exception when lock_not_available then
                    perform pg_sleep(0.1);
                end;
            end loop;
            raise lock_not_available using message = 'history is in use: a transaction has been open for a minute';
        end
        $do$"""
    )


def _choose_lookups(expected: Catalog, found: Catalog, names: Names) -> Catalog:
    """Return what is expected, with those of the optional indexes alone that are there."""
    optional = {f"index {names.bare(index)} on {names.bare(table)}" for index, (table, _) in _LOOKUPS.items()}
    return {item: text for item, text in expected.items() if item not in optional or item in found}


async def _wait_for_turn(connection: Connection, schema: str | None, prefix: str) -> None:
    """Wait until nobody else changes the lookups of that schema and prefix. The turn ends with the connection.

    Asked again and again: a statement that waits keeps a snapshot, and building an index waits for every snapshot.
    """
    name = "concat_ws('.', 'pillarbox.lookups', coalesce($1::text, current_schema()), $2::text)"
    ask = f"select pg_try_advisory_lock(hashtextextended({name}, 0))"
    while not await connection.fetchval(ask, schema, prefix):  # noqa: ASYNC110 - another process has the lock
        await asyncio.sleep(_TURN)


async def _lock_tables(connection: Connection, schema: str | None, prefix: str) -> None:
    """Wait until nobody else changes the tables of that schema and prefix. The lock ends with the transaction."""
    name = "concat_ws('.', 'pillarbox', coalesce($1::text, current_schema()), $2::text)"
    await connection.execute(f"select pg_advisory_xact_lock(hashtextextended({name}, 0))", schema, prefix)


def _is_mixed(refusal: Refusal) -> bool:
    """Return whether a statement did not fit the tables. A missing right is another matter."""
    return refusal.state.startswith(("42", "2BP01")) and refusal.state != "42501"
