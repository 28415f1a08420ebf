"""Indexes that are built and dropped while everybody works, also those of the partitions of history.

A build that was interrupted leaves an index that is not valid. The next one drops it and begins again.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pillarbox.message import Names
from pillarbox.stores.postgres.driver import Connection

__all__ = ["Index", "build_index", "drop_index", "parse_index", "parse_index_drop"]

_CREATE: Final = re.compile(
    r"create (?P<unique>unique )?index concurrently (?:if not exists )?pillarbox_(?P<name>\w+)"
    r" on (?:only )?pillarbox_(?P<table>\w+) (?P<columns>.*)",
    re.DOTALL | re.IGNORECASE,
)
_DROP: Final = re.compile(r"drop index concurrently (?:if exists )?pillarbox_(?P<name>\w+)", re.IGNORECASE)
_MAX_NAME: Final = 63
_IS_VALID: Final = "select indisvalid from pg_index where indexrelid = to_regclass($1)"
_KIND: Final = "select relkind::text from pg_class where oid = to_regclass($1)"
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


class Index(msgspec.Struct, frozen=True):
    """An index of one of our tables; names are written without their prefix."""

    name: str
    table: str
    columns: str
    """All behind the table's name."""
    unique: bool = False

    def create(self, names: Names, *, how: str = "", only: str = "") -> str:
        """Return the statement that creates it."""
        kind = "unique index" if self.unique else "index"
        table = names.table(self.table)
        return f"create {kind} {how} if not exists {names.bare(self.name)} on {only}{table} {self.columns}"


def parse_index(statement: str) -> Index | None:
    """Return the index that a statement of a migration builds concurrently; None for any other statement."""
    found = _CREATE.fullmatch(" ".join(statement.split()))
    return found and Index(found["name"], found["table"], found["columns"], found["unique"] is not None)


def parse_index_drop(statement: str) -> str | None:
    """Return the name of the index that a statement of a migration drops concurrently; None for any other."""
    found = _DROP.fullmatch(" ".join(statement.split()))
    return found and found["name"]


async def build_index(connection: Connection, index: Index, names: Names) -> bool:
    """Build an index unless it is there and valid; return whether it was built. Stops no writer for long."""
    is_valid = await connection.fetchval(_IS_VALID, names.table(index.name))
    if is_valid:
        return False
    if await connection.fetchval(_KIND, names.table(index.table)) == "p":
        await _build_partitioned(connection, index, names, is_there=is_valid is not None)
        return True
    if is_valid is not None:  # left over by a build that was interrupted
        await connection.execute(f"drop index concurrently {names.table(index.name)}")
    await connection.execute(index.create(names, how="concurrently"))
    return True


async def drop_index(connection: Connection, name: str, names: Names) -> bool:
    """Drop an index if it is there; return whether it was. Stops no writer for long."""
    kind = await connection.fetchval(_KIND, names.table(name))
    if kind is None:
        return False
    if kind == "I":  # of a partitioned table
        await _execute_between(connection, f"drop index {names.table(name)}")
    else:
        await connection.execute(f"drop index concurrently {names.table(name)}")
    return True


async def _build_partitioned(connection: Connection, index: Index, names: Names, *, is_there: bool) -> None:
    """Build an index of all partitions: on one after the other. It is valid when all have it.

    A partition that is added meanwhile has it from the beginning. What concerns the whole needs a lock for a moment.
    """
    whole, table = names.table(index.name), names.table(index.table)
    rows = await connection.fetch(_WITHOUT_INDEX, table, whole) if is_there else []
    if is_there and not rows:  # not valid although no partition lacks it
        await _execute_between(connection, f"drop index {whole}")
        is_there = False
    if not is_there:
        await _execute_between(connection, index.create(names, only="only "))
        rows = await connection.fetch(_WITHOUT_INDEX, table, whole)
    kind = "unique index" if index.unique else "index"
    for schema, partition in rows:
        part = f"{partition}{index.name.removeprefix(index.table)}"[:_MAX_NAME]
        await connection.execute(f'drop index concurrently if exists "{schema}"."{part}"')
        await connection.execute(f'create {kind} concurrently "{part}" on "{schema}"."{partition}" {index.columns}')
        await _execute_between(connection, f'alter index {whole} attach partition "{schema}"."{part}"')


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
