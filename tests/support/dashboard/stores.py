"""Empty stores of every kind, each with a writer of rows beside it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from pillarbox.contracts.store import Store
from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.message import Message, Names
from pillarbox.stores.factory import open_store
from pillarbox.stores.memory import MemoryStore
from pillarbox.writers.mysql import PymysqlWriter
from pillarbox.writers.psycopg import PsycopgWriter
from pillarbox.writers.sqlite import SqliteWriter
from tests.support.dashboard.seed import RowWriter
from tests.support.dashboard.story import MemoryWriter
from tests.support.mariadb_server import connected

__all__ = ["KINDS", "OpenStore", "open_kind"]

KINDS = ("memory", "sqlite", "postgres", "mariadb")


class OpenStore(NamedTuple):
    """A store that is open, and what writes into it."""

    store: Store
    writer: RowWriter
    build: Callable[[], Store]
    """Builds another store over the same rows, not yet open."""
    url: str = ""
    """Empty for a store in memory."""


class _SqlWriter:
    """Runs each command in a transaction of its own, in a thread: the loop must not wait for a lock of the store."""

    def __init__(self, names: Names, transaction: Callable[[], Any], build: Callable[[Any], Any]) -> None:
        self._names = names
        self._transaction = transaction
        self._build = build

    async def insert(self, messages: Sequence[Message]) -> None:
        await asyncio.to_thread(self._run, lambda writer: writer.insert(Insert(names=self._names, messages=messages)))

    async def execute(self, command: InboxCommand[Any]) -> Any:
        return await asyncio.to_thread(self._run, lambda writer: writer.execute(command))

    def _run(self, call: Callable[[Any], Any]) -> Any:
        with self._transaction() as connection:
            return call(self._build(connection))


@contextmanager
def _commit_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        yield connection


@contextmanager
def _commit_mariadb(url: str) -> Iterator[Any]:
    with closing(connected(url)) as connection:
        yield connection
        connection.commit()


@asynccontextmanager
async def open_kind(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    """Open an empty store of this kind. The servers and tables come from the fixtures of all tests."""
    if kind == "memory":
        memory = MemoryStore()
        yield OpenStore(memory, MemoryWriter(memory), lambda: memory)
        return
    with ExitStack() as lent:
        url, writer = _prepare(kind, request, lent)
        store = open_store(url)
        await store.open()
        try:
            yield OpenStore(store, writer, lambda: open_store(url), url)
        finally:
            await store.close()


def _prepare(kind: str, request: pytest.FixtureRequest, lent: ExitStack) -> tuple[str, _SqlWriter]:
    if kind == "sqlite":
        path: Path = request.getfixturevalue("tmp_sqlite")
        request.getfixturevalue("sqlite_tables").install(path)
        return f"sqlite:///{path}", _SqlWriter(Names(), lambda: _commit_sqlite(path), SqliteWriter)
    if kind == "postgres":
        server = request.getfixturevalue("postgres_url")
        names = lent.enter_context(request.getfixturevalue("postgres_tables").lend())
        url = f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{names.schema}"
        return url, _SqlWriter(Names(), lambda: psycopg.connect(url), PsycopgWriter)
    mariadb: str = lent.enter_context(request.getfixturevalue("mariadb_tables").lend())
    return mariadb, _SqlWriter(Names(), lambda: _commit_mariadb(mariadb), PymysqlWriter)
