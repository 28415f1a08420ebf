"""The two stores: how they are set up, looked into and written to."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, Final, Protocol

import asyncpg
import msgspec
import psycopg

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.granted import Logins
from tests.support.relay_processes.ticks import Tick, outbox

__all__ = ["Load", "Place", "PostgresPlace", "SqlitePlace"]

# Counting up locks the key's row, so ids follow commit order for each key.
_TALLY: Final = "create table tally (key text primary key, number integer not null)"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What writers do until told to stop."""

    keys: int = 30
    writers: int = 6
    rest: float = 0.02
    """Seconds between the transactions of one writer, at most."""
    hold: float = 0.0
    """Seconds that a transaction is held open after its message, at most."""
    rollbacks: float = 0.1


class Place(Protocol):
    """One store with its tables. `rows` may use `{now}` for the store's clock."""

    store: str
    names: Names

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        """Ask the tables."""

    def write(self, load: Load, stop: Event) -> None:
        """Write until stopped."""

    def put(self, ticks: Sequence[Tick]) -> None:
        """Write these in one transaction."""

    def is_locked(self) -> bool:
        """Whether somebody holds locks and does nothing."""

    def close(self) -> None: ...


def _tick(key: str, number: int, dice: random.Random, load: Load) -> Tick:
    return Tick(key=key, number=number, written_at=time.monotonic_ns(), kept=dice.random() >= load.rollbacks)


class SqlitePlace:
    def __init__(self, path: Path) -> None:
        self.store = f"sqlite:///{path}?synchronous=normal"
        self.names = Names()
        self._path = path
        self._outbox = outbox(self.names)
        asyncio.run(open_schema(parse_store_url(self.store), names=self.names).install())
        with closing(self._connect()) as connection:
            connection.execute(_TALLY)

    def _connect(self, *, timeout: float = 30) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=timeout, isolation_level=None)
        connection.execute("pragma synchronous = normal")
        return connection

    def close(self) -> None:
        pass

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        now = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
        with closing(self._connect()) as connection:
            return connection.execute(sql.format(now=now), values).fetchall()

    def write(self, load: Load, stop: Event) -> None:
        dice = random.Random(0)
        with closing(self._connect()) as connection:
            while not stop.wait(dice.random() * load.rest / load.writers):
                self._write_one(connection, load, dice)

    def _write_one(self, connection: sqlite3.Connection, load: Load, dice: random.Random) -> None:
        key = f"k{dice.randrange(load.keys)}"
        connection.execute("begin immediate")
        counted = "insert into tally values (?, 1) on conflict (key) do update set number = number + 1 returning number"
        ((number,),) = connection.execute(counted, (key,)).fetchall()
        tick = _tick(key, number, dice, load)
        self._outbox.publish(connection, tick)
        connection.execute("commit" if tick.kept else "rollback")

    def put(self, ticks: Sequence[Tick]) -> None:
        with closing(self._connect()) as connection:
            connection.execute("begin immediate")
            self._outbox.publish(connection, list(ticks))
            connection.execute("commit")

    def is_locked(self) -> bool:
        with closing(self._connect(timeout=0)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
            return False


class PostgresPlace:
    def __init__(self, url: str, schema: str, logins: Logins) -> None:
        self.names = Names(schema)
        self._schema = schema
        self._outbox = outbox(self.names)
        asyncio.run(open_schema(parse_store_url(url), names=self.names).install())
        self.store = logins.url_as("relay", url, self.names)
        self._writer_url = logins.url_as("writer", url, self.names)
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f'set search_path = "{schema}"'.encode())
        self._connection.execute(_TALLY.encode())
        self._connection.execute(b"insert into tally select 'k' || k, 0 from generate_series(0, 99) k")
        logins.run("writer", url, f'grant select, update on "{schema}".tally to {{login}}')

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        query = sql.format(now="clock_timestamp()").replace("?", "%s")
        return self._connection.execute(query.encode(), values).fetchall()

    def write(self, load: Load, stop: Event) -> None:
        async def all_writers() -> None:
            async with asyncio.TaskGroup() as writers:
                for number in range(load.writers):
                    writers.create_task(self._write(load, stop, random.Random(number)))

        asyncio.run(all_writers())

    async def _connect(self) -> Any:
        settings = {"search_path": self._schema, "application_name": "writer", "synchronous_commit": "off"}
        return await asyncpg.connect(self._writer_url, server_settings=settings)

    async def _write(self, load: Load, stop: Event, dice: random.Random) -> None:
        connection = await self._connect()
        try:
            while not stop.is_set():
                await self._write_one(connection, load, dice)
                await asyncio.sleep(dice.random() * load.rest)
        finally:
            await connection.close()

    async def _write_one(self, connection: Any, load: Load, dice: random.Random) -> None:
        key = f"k{dice.randrange(load.keys)}"
        transaction = connection.transaction()
        await transaction.start()
        number = await connection.fetchval("update tally set number = number + 1 where key = $1 returning number", key)
        if load.hold:
            await asyncio.sleep(dice.choice((0.0, dice.random() * 0.01)))
        tick = _tick(key, number, dice, load)
        await self._outbox.publish(connection, tick)
        if load.hold:
            await asyncio.sleep(dice.random() * (load.hold if dice.random() < 0.02 else 0.01))
        await (transaction.commit() if tick.kept else transaction.rollback())

    def put(self, ticks: Sequence[Tick]) -> None:
        with self._connection.transaction():
            self._outbox.publish(self._connection, list(ticks))

    def is_locked(self) -> bool:
        idle = "select 1 from pg_stat_activity where datname = current_database() and state like 'idle in%%'"
        return bool(self.rows(f"{idle} and application_name <> 'writer' and pid <> pg_backend_pid()"))
