"""An SQLite file full of messages, made once and copied for each run; and the bare loop over it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.database import KEYS, PAYLOAD
from pillarbox.message import Names, compute_partition, new_message_id
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url

__all__ = ["BATCH", "bare_loop", "filled"]

BATCH: Final = 1_000

_INSERT: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values (?, 'default', ?, 'event', 'orders.placed', 'orders', ?, ?, 'application/json', '/shop', 'c', 0)"""
_READ: Final = "select * from pillarbox_outbox where id > ? and waits is null order by id limit ?"
_KEEP: Final = """
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
        correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, ?,
           'delivered'
      from pillarbox_outbox where id in (select value from json_each(?))"""
_CLOSE: Final = "delete from pillarbox_outbox where id in (select value from json_each(?))"


@asynccontextmanager
async def filled(*, messages: int) -> AsyncIterator[Callable[[], AbstractContextManager[Path]]]:
    """A way to get a fresh copy of a file with that many messages. All of them are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="pillarbox-bench-") as folder:
        original = Path(folder, "original.db")
        await _fill(original, messages)

        @contextmanager
        def fresh() -> Iterator[Path]:
            path = Path(folder, "copy.db")
            shutil.copyfile(original, path)
            try:
                yield path
            finally:
                for left in Path(folder).glob("copy.db*"):
                    left.unlink()

        yield fresh


async def _fill(path: Path, messages: int) -> None:
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_INSERT, (_row(number) for number in range(messages)))


def _row(number: int) -> tuple[str, int, str, bytes]:
    message_id, key = new_message_id(), f"key-{number % KEYS}"
    return str(message_id), compute_partition(key, message_id), key, PAYLOAD


def bare_loop(path: Path, *, expected: int) -> float:
    """What nobody can beat: read rows by id, move them into the history, in one thread."""
    settled = low = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        started = time.perf_counter()
        while rows := connection.execute(_READ, (low, BATCH)).fetchall():
            low, ids = rows[-1][0], json.dumps([row[0] for row in rows])
            connection.execute("begin immediate")
            connection.execute(_KEEP, (0, ids))
            connection.execute(_CLOSE, (ids,))
            connection.execute("commit")
            settled += len(rows)
        elapsed = time.perf_counter() - started
    assert settled == expected
    return settled / elapsed
