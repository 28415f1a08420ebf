"""A commit that succeeded and reported an error: the message has its effect once, and does not fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.stores.factory import open_schema
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until


class Lossy:
    """Transactions of a file. The first one with an effect commits, and then reports an error."""

    def __init__(self, file: Path, *, code: int) -> None:
        self._file = file
        self._code = code
        self.lost = 0

    @contextmanager
    def __call__(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            try:
                yield connection
            except BaseException:
                connection.execute("rollback")
                raise
            connection.execute("commit")
            has_billed = connection.execute("select count(*) from bill").fetchone() == (1,)
        if has_billed and not self.lost:
            self.lost += 1
            error = sqlite3.OperationalError("reported after the commit")
            error.sqlite_errorcode = self._code
            raise error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_ERROR])
async def test_a_commit_that_reports_an_error_after_it_succeeded_fails_no_message(tmp_path: Path, code: int) -> None:
    file = tmp_path / "shop.db"
    await open_schema(f"sqlite:///{file}").upgrade()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("create table bill (number integer)")
    database, queue = Lossy(file, code=code), MemoryQueue()
    consumer = Consumer("clock", receiver=MemoryReceiver(queue), database=database, settings=QUICK, types=TYPES)

    @consumer.on(Ticked)
    def bill(event: Ticked, tx: Any) -> None:
        tx.execute("insert into bill values (?)", (event.number,))

    queue.put(tick(1))
    async with consumer:
        await until(lambda: not queue.waiting and not queue.unacknowledged)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select number from bill").fetchall() == [(1,)]
        assert connection.execute("select status from pillarbox_inbox").fetchall() == [("done",)]
    assert database.lost == 1
