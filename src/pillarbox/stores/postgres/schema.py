"""The tables in a PostgreSQL database: creating, changing and verifying them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import Final, TypeVar

from pillarbox.durations import check_duration
from pillarbox.errors import ConfigError, SchemaMixed, StoreBusy
from pillarbox.message import TABLES, Names
from pillarbox.stores.catalog import Catalog, Difference, IdCounter, compare_catalogs
from pillarbox.stores.compatibility import FIRST_DECLARED, SchemaVersion
from pillarbox.stores.lock_wait import DEFAULT_LOCK_TIMEOUT, DEFAULT_PATIENCE, LockWait, Report, ignore_report
from pillarbox.stores.migrations import (
    Interrupted,
    Migration,
    Plan,
    Step,
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
from pillarbox.stores.postgres.checks import read_counter
from pillarbox.stores.postgres.connection import map_errors
from pillarbox.stores.postgres.driver import Connection, Refusal, load_driver
from pillarbox.stores.postgres.indexes import Index, build_index, drop_index, parse_index, parse_index_drop
from pillarbox.stores.postgres.portable.tables import build_portable
from pillarbox.stores.sql import Statements
from pillarbox.stores.urls import StoreUrl

__all__ = ["PostgresSchema"]

T = TypeVar("T")

_CONNECT_TIMEOUT: Final = 10.0
_TURN: Final = 0.2
"""Seconds between two looks at whether another process still changes the tables."""
_CONTENDED: Final = ("55P03", "40P01", "40001")
"""SQLSTATEs of a lock that was not to be had in time, or had to be given up."""
_LOOKUPS: Final = (
    Index("history_message_idx", "history", "(message_id)"),
    Index("history_status_idx", "history", "(status, status_at, id)"),
    Index("history_corr_idx", "history", "(left(correlation_id, 64))"),
    Index("outbox_corr_idx", "outbox", "(left(correlation_id, 64))"),
)
"""Indexes that an installation may have or not: see docs/schema.md."""

_PARTITIONS: Final = "partitions"
"""Name of the migration that partitions history."""
_LARGE: Final = 64 * 1024 * 1024
"""Bytes of a table that is not read under a lock. Less is read in a moment."""
_PLACES: Final = "growth"
"""Name of the migration that brings the index of places in lanes."""
_INSPECT_OUTBOX: Final = """
    select pg_relation_size(to_regclass($1)), (select indisvalid from pg_index where indexrelid = to_regclass($2))"""
_PLACES_INDEX: Final = Index(
    "outbox_place_idx", "outbox", "(destination, ((partition::bigint << 57) + id)) where waits is null"
)
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
_LEFT_BOUNDS: Final = """
    select format('%I.%I', nspname, relname)
      from pg_constraint
      join pg_class c on c.oid = conrelid
      join pg_namespace n on n.oid = relnamespace
     where contype = 'c' and coninhcount = 0 and conname = $2
       and (conrelid = to_regclass($1)
            or conrelid in (select inhrelid from pg_inherits where inhparent = to_regclass($1)))
"""
"""Tables of history that have a bound which was left over by an upgrade that was killed."""

_LOCK: Final = "hashtextextended(concat_ws('.', 'pillarbox', coalesce($1::text, current_schema()), $2::text), 0)"
"""Number of the lock for changes of the tables of one schema and prefix."""
_ASK_LOCK: Final = f"select pg_try_advisory_xact_lock({_LOCK})"
_ASK_SESSION_LOCK: Final = f"select pg_try_advisory_lock({_LOCK})"
_TAKE_LOCK: Final = f"select pg_advisory_xact_lock({_LOCK})"


class PostgresSchema:
    """`Schema` on PostgreSQL.

    A change needs the exclusive lock of its tables, and writers queue up behind its wait. So it waits for
    `lock_timeout` at most, and tries again for as long as its `patience` lasts. `report` takes what it does meanwhile.
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
        self._driver = load_driver(url.driver)
        self._names = names
        self._is_portable = url.options.get("dialect") == "portable"
        shipped = load_migrations("postgresql") if migrations is None else migrations
        self._migrations = build_portable(shipped) if self._is_portable else shipped
        check_duration(lock_timeout, "lock_timeout")
        check_duration(patience, "patience")
        self._wait = LockWait(lock_timeout=lock_timeout, patience=patience, report=report)
        self._report = report

    async def version(self) -> int:
        async with self._transaction() as connection:
            return (await self._read_version(connection)).version

    async def install(self) -> Plan:
        return await self._run(
            lambda found: plan_nothing(self._migrations, found) or plan_install(self._migrations, current=found.version)
        )

    async def upgrade(self, *, target: int | None = None) -> Plan:
        self._check_portable(target)
        await self._build_places(target=target)
        async with self._bound_history(target=target):
            return await self._run(
                lambda found: (
                    plan_nothing(self._migrations, found, target=target)
                    or plan_upgrade(self._migrations, current=found.version, target=target)
                )
            )

    async def downgrade(self, *, target: int) -> Plan:
        self._check_portable(target)
        if not self._is_portable:
            async with self._connect() as connection:  # an upgrade that was killed may have left its bound
                await self._limit_waits(connection)
                await self._drop_bounds(connection)
        return await self._run(lambda found: plan_downgrade(self._migrations, current=found.version, target=target))

    async def verify(self) -> Sequence[Difference]:
        async with self._transaction() as connection:
            check_whole(await self._read_interrupted(connection))
            check_version((await self._read_version(connection)).version, latest=len(self._migrations))
            schema = await connection.fetchval(
                "select relnamespace from pg_class where oid = to_regclass($1)", self._names.table("schema")
            )
            found = await self._read_catalog(connection, schema)
            counter: IdCounter | None = None
            if all(f"table {self._names.bare(name)}" in found for name in ("outbox", "history", "lane")):
                sql = Statements("pillarbox.stores.postgres", self._names)
                counter = await read_counter(connection, sql, names=self._names)
            expected = _choose_lookups(await self._build_expected(connection), found, self._names)
            differences = compare_catalogs(expected=expected, found=found)
            return (*differences, *(() if counter is None else counter.list_differences()))

    async def change_lookups(self, *, wanted: bool) -> Sequence[str]:
        """Create the indexes for lookups, or drop them; return those that changed. Neither stops a writer for long."""
        changed = []
        async with self._connect() as connection:
            check_version((await self._read_version(connection)).version, latest=len(self._migrations))
            if not self._is_portable:
                await _wait_for_turn(connection, self._names.schema, self._names.prefix)
            await connection.execute("set statement_timeout = 0")  # a role's own limit is for other statements
            for index in _LOOKUPS:
                change = (
                    build_index(connection, index, self._names)
                    if wanted
                    else drop_index(connection, index.name, self._names)
                )
                if await change:
                    changed.append(self._names.bare(index.name))
        return changed

    async def _build_places(self, *, target: int | None) -> None:
        """Build the index of places in lanes on a large outbox ahead of its migration, which would stop writers."""
        migration = next((one for one in self._migrations[:target] if one.name == _PLACES), None)
        async with self._connect() as connection:
            current = (await self._read_version(connection)).version
            if migration is None or not 0 < current < migration.version:
                return
            places = self._names.table("outbox"), self._names.table(_PLACES_INDEX.name)
            size, is_valid = await connection.fetchrow(_INSPECT_OUTBOX, *places)
            if size > _LARGE or is_valid is False:  # left over by a build that was interrupted
                await self._limit_waits(connection)
                await self._retry(lambda: build_index(connection, _PLACES_INDEX, self._names))

    @asynccontextmanager
    async def _bound_history(self, *, target: int | None) -> AsyncIterator[None]:
        """Prove which ids a large history has, before it becomes a partition: else it is read under an exclusive lock.

        The proof is a constraint, which takes no ids far above today's. So it does not outlive an upgrade that fails,
        and the next one removes what a process left behind that was killed.
        """
        if self._is_portable:  # history is one table
            yield
            return
        async with self._connect() as connection:
            row = await connection.fetchrow(_INSPECT_HISTORY, self._names.table("history"))
            is_needed = row is not None and row[0] > _LARGE and self._adds_partitions(target)
            await self._limit_waits(connection)
            if is_needed:
                self._report("Reading the history, which stops nobody: its ids must be known before it is partitioned.")
                for statement in _BOUND_HISTORY:
                    await self._execute(connection, self._names.qualify(statement))
            else:
                await self._drop_bounds(connection)
        try:
            yield
        except BaseException:
            if is_needed:
                async with self._connect() as connection:
                    await self._limit_waits(connection)
                    await self._drop_bounds(connection)
            raise

    async def _drop_bounds(self, connection: Connection) -> None:
        constraint = self._names.bare("history_bound_chk")
        for (table,) in await connection.fetch(_LEFT_BOUNDS, self._names.table("history"), constraint):
            await self._execute(connection, f'alter table {table} drop constraint if exists "{constraint}"')

    def _adds_partitions(self, target: int | None) -> bool:
        return any(one.name == _PARTITIONS for one in self._migrations[:target])

    def _check_portable(self, target: int | None) -> None:
        if self._is_portable and target is not None and 0 < target < FIRST_DECLARED:
            raise ConfigError(
                f"Tables with dialect=portable begin with version {FIRST_DECLARED}: name that or a later one, or 0."
            )

    async def _run(self, make_plan: Callable[[SchemaVersion], Plan]) -> Plan:
        """Run a plan: what can be one transaction is one, and the other steps run on their own."""
        first: Plan | None = None
        while True:
            self._wait.begin()
            plan, is_done = await self._retry(partial(self._run_part, make_plan))
            first = first or plan
            if is_done:
                return first
            make_plan = partial(_plan_rest, self._migrations, plan.target)

    async def _run_part(self, make_plan: Callable[[SchemaVersion], Plan]) -> tuple[Plan, bool]:
        """Run the next steps that belong together; return the plan, and whether all of it is done."""
        async with self._connect() as connection:
            await self._begin_turn(connection)
            found = make_plan(await self._read_version(connection))
            plan = plan_recovery(self._migrations, found, await self._read_interrupted(connection))
            together = list(takewhile(lambda step: step.in_transaction, plan.steps))
            if plan.steps and not together:
                await connection.execute("rollback")
                await self._run_alone(connection, plan.steps[0], current=plan.current)
                return plan, len(plan.steps) == 1
            await connection.execute(f"set local lock_timeout = {self._milliseconds}")
            if plan.target > plan.current:
                await self._create_schema(connection)
            for step in together if plan.target > plan.current > 0 else ():
                self._report(f"{step.version:04}_{step.name}")
            await self._apply(connection, Plan(plan.current, plan.target, together), self._names)
            await connection.execute("commit")
            return plan, len(together) == len(plan.steps)

    async def _run_alone(self, connection: Connection, step: Step, *, current: int) -> None:
        """Run a step outside a transaction, statement by statement. All of them can be repeated: so can the step.

        Nobody else may change the tables meanwhile. Those who wait for their turn ask again and again: a statement
        that waits keeps a snapshot, and building an index waits for every snapshot.
        """
        ask = (_ASK_SESSION_LOCK, self._names.schema, self._names.prefix)
        while not await connection.fetchval(*ask):  # noqa: ASYNC110 - another process has the lock
            await asyncio.sleep(_TURN)
        if (await self._read_version(connection)).version != current:
            return
        await self._limit_waits(connection)
        if self._names.schema is not None:  # for `drop index`, whose name is written without a schema
            await connection.execute(f'set search_path = "{self._names.schema}"')
        if step.begin is not None:
            await self._execute(connection, self._names.qualify(step.begin))
        statements = list(split_script(step.script))
        for number, statement in enumerate(statements, start=1):
            self._report(f"{step.version:04}_{step.name}: statement {number} of {len(statements)}")
            self._wait.begin()
            await self._run_statement(connection, statement)
        if step.record is not None:
            await self._execute(connection, self._names.qualify(step.record))

    async def _run_statement(self, connection: Connection, statement: str) -> None:
        """Run one statement of a step. To build an index waits for every transaction, and nobody waits for that."""
        index, dropped = parse_index(statement), parse_index_drop(statement)
        if index is None and dropped is None:
            await self._execute(connection, self._names.qualify(statement))
            return
        await connection.execute("set lock_timeout = 0")
        if index is not None:
            await self._retry(partial(build_index, connection, index, self._names))
        elif dropped is not None:
            await self._retry(partial(drop_index, connection, dropped, self._names))
        await self._limit_waits(connection)

    async def _begin_turn(self, connection: Connection) -> None:
        """Begin a transaction in which nobody else changes the tables of that schema and prefix.

        It is read committed whatever the server's default: it must see what the others did.
        """
        while True:
            await connection.execute("begin isolation level read committed")
            if self._is_portable:  # the rows of versions are its lock, where there are any
                return
            if await connection.fetchval(_ASK_LOCK, self._names.schema, self._names.prefix):
                return
            await connection.execute("rollback")
            await asyncio.sleep(_TURN)

    async def _limit_waits(self, connection: Connection) -> None:
        """Wait for locks briefly, and for the statement itself as long as it takes, whatever the role's own limit."""
        await connection.execute(f"set statement_timeout = 0; set lock_timeout = {self._milliseconds}")

    @property
    def _milliseconds(self) -> int:
        return max(1, int(self._wait.lock_timeout.total_seconds() * 1000))

    async def _execute(self, connection: Connection, statement: str) -> None:
        """Run a statement outside a transaction, again if a lock was not to be had."""
        await self._retry(lambda: connection.execute(statement))

    async def _retry(self, action: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await action()
            except Exception as error:
                # Inside a connection's block it is the driver's error, outside it is ours, with that as its cause.
                refused = error.__cause__ if isinstance(error, StoreBusy) else error
                refusal = self._driver.parse_refusal(refused) if isinstance(refused, Exception) else None
                if refusal is None or refusal.state not in _CONTENDED:
                    raise
                pause = self._wait.next_pause(refusal.message)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _create_schema(self, connection: Connection) -> None:
        """Create the configured schema where it is missing."""
        schema = self._names.schema
        # `if not exists` alone would demand the right to create a schema even where it exists.
        if schema is not None and await connection.fetchval("select to_regnamespace($1) is null", f'"{schema}"'):
            if not self._is_portable:
                await connection.execute(_TAKE_LOCK, schema, "")
            await connection.execute(f'create schema if not exists "{schema}"')

    async def _read_version(self, connection: Connection) -> SchemaVersion:
        table = self._names.table("schema")
        if await connection.fetchval("select to_regclass($1) is null", table):
            return SchemaVersion.build(0)
        sql = Statements("pillarbox.stores.postgres", self._names)
        if self._is_portable:
            await connection.execute(f"select version from {table} order by version for update")
        version: int | None = await connection.fetchval(sql["schema_version"])
        if version is None:
            raise SchemaMixed(f"The table {table} is there but records no version; see docs/schema.md.")
        if version < FIRST_DECLARED:
            return SchemaVersion.build(version)
        return SchemaVersion.build(*await connection.fetchrow(sql["schema_declared"]))

    async def _read_interrupted(self, connection: Connection) -> Interrupted | None:
        """Return the step outside a transaction that was begun and did not end."""
        table = self._names.table("schema")
        if await connection.fetchval("select to_regclass($1) is null", table):
            return None
        return find_interrupted([row[0] for row in await connection.fetch(f"select version from {table}")])[1]

    async def _build_expected(self, connection: Connection) -> Catalog:
        """Read the catalog of a fresh installation: of temporary tables, which the rollback removes."""
        scratch = Names(schema="pg_temp", prefix=self._names.prefix)
        await self._apply(connection, build_plan(self._migrations, current=0, target=len(self._migrations)), scratch)
        for index in _LOOKUPS:
            await connection.execute(index.create(scratch))
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
    async def _transaction(self) -> AsyncIterator[Connection]:
        """Open a connection for one transaction, which changes nothing."""
        async with self._connect() as connection:
            await connection.execute("begin isolation level read committed")
            yield connection
            await connection.execute("rollback")

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


def _choose_lookups(expected: Catalog, found: Catalog, names: Names) -> Catalog:
    """Return what is expected, with those of the optional indexes alone that are there."""
    optional = {f"index {names.bare(index.name)} on {names.bare(index.table)}" for index in _LOOKUPS}
    return {item: text for item, text in expected.items() if item not in optional or item in found}


async def _wait_for_turn(connection: Connection, schema: str | None, prefix: str) -> None:
    """Wait until nobody else changes the lookups of that schema and prefix. The turn ends with the connection.

    Asked again and again: a statement that waits keeps a snapshot, and building an index waits for every snapshot.
    """
    name = "concat_ws('.', 'pillarbox.lookups', coalesce($1::text, current_schema()), $2::text)"
    ask = f"select pg_try_advisory_lock(hashtextextended({name}, 0))"
    while not await connection.fetchval(ask, schema, prefix):  # noqa: ASYNC110 - another process has the lock
        await asyncio.sleep(_TURN)


def _plan_rest(migrations: Sequence[Migration], target: int, found: SchemaVersion) -> Plan:
    return build_plan(migrations, current=found.version, target=target)


def _is_mixed(refusal: Refusal) -> bool:
    """Return whether a statement did not fit the tables. A missing right is another matter."""
    return refusal.state.startswith(("42", "2BP01")) and refusal.state != "42501"
