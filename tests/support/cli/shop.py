"""An SQLite file with our tables, for tests of commands."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pillarbox import Outbox
from pillarbox.stores.factory import open_schema
from tests.support.cli.program import RunResult, pillarbox

__all__ = ["Shop"]


class Shop:
    """An SQLite file with our tables, and Ann, who runs the program on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "shop.db"
        self.url = "sqlite:///shop.db"

    async def install(self) -> None:
        """Install the tables; the fixture `shop` copies them, which is faster."""
        await open_schema(f"sqlite:///{self.file}").install()

    def publish(self, count: int, *, to: str = "hooks", keys: int = 4) -> None:
        outbox = Outbox(routes=to, source="/shop")
        with self.connect() as tx:
            for number in range(count):
                outbox.publish(tx, {"n": number}, type="orders.placed", key=f"k{number % keys}")

    @contextlib.contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            yield connection

    def rows(self, sql: str) -> Sequence[Any]:
        with self.connect() as connection:
            return connection.execute(sql).fetchall()

    def number(self, sql: str) -> int:
        ((number,),) = self.rows(f"select count(*) from {sql}")
        return int(number)

    def fail(self, where: str, error: str) -> None:
        """Close messages as failed, as a relay would."""
        columns = (
            "id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, "
            "subject, correlation_id, causation_id, event_time, created_at, available_at"
        )
        with self.connect() as tx:
            tx.execute(
                f"insert into pillarbox_history ({columns}, attempts, last_error, status_at, status) "
                f"select {columns}, 5, ?, created_at, 'failed' from pillarbox_outbox where {where}",
                (error,),
            )
            tx.execute(f"delete from pillarbox_outbox where {where}")

    def run(self, *arguments: str, **extra: str) -> RunResult:
        return pillarbox(*arguments, cwd=self.folder, PILLARBOX_STORE=self.url, PILLARBOX_BY="ann", **extra)

    def run_json(self, *arguments: str) -> Any:
        """Run a command that succeeds; return its JSON document."""
        ran = self.run(*arguments, "-o", "json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)
