"""Locks in the database of a scene: to hold one, and to see who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import psycopg

from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.scene import Scene

__all__ = ["count_waits", "hold"]


@asynccontextmanager
async def hold(scene: Scene, lock: str) -> AsyncIterator[None]:
    """Hold a lock while the block runs, on a connection of its own."""
    if scene.url.startswith("mysql"):
        with closing(connected(scene.url)) as session:
            await asyncio.to_thread(_take_lock, session, lock)
            yield
            session.rollback()
        return
    connection: Any = await asyncpg.connect(scene.url)
    try:
        await connection.execute(f'set search_path = "{scene.names.schema}"')
        async with connection.transaction():
            await connection.execute(lock)
            yield
    finally:
        await connection.close()


def _take_lock(connection: Any, lock: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(lock)


def count_waits(scene: Scene) -> int:
    """How many sessions wait for a lock in this database.

    On MariaDB and MySQL a wait for a row is a statement of this database that takes long, while rows are waited for.
    """
    if scene.url.startswith("mysql"):
        # INNODB_TRX would not do: it is a copy, which is not renewed while it is read again and again.
        with closing(connected(scene.url)) as connection, connection.cursor() as cursor:
            cursor.execute("show global status like 'Innodb_row_lock_current_waits'")
            has_row_waits = int(cursor.fetchone()[1]) > 0  # of the whole server, which others use
            cursor.execute("select version()")
            long = "time_ms >= 200" if "MariaDB" in cursor.fetchone()[0] else "time >= 1"
            cursor.execute(
                "select coalesce(sum(state like 'Waiting for table%'), 0),"
                f" coalesce(sum(command = 'Query' and {long}), 0)"
                " from information_schema.processlist where db = database() and id <> connection_id()"
            )
            tables, rows = map(int, cursor.fetchone())
            return tables + (rows if has_row_waits else 0)
    with psycopg.connect(scene.url) as connection:
        waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        return len(connection.execute(waiting).fetchall())
