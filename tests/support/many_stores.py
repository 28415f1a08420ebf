"""Stores of several tenants, for tests of relays over all of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg

from pillarbox import Outbox, Route, Routes
from pillarbox.relay.relay import Destination
from pillarbox.relay.relays import Relays
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.factory import open_schema
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.scene import Script, quick_retry, until

__all__ = ["ManyStores", "list_numbers", "to_destination", "until_running"]


def to_destination(sink: Script) -> Destination:
    return Destination(lambda: sink, DestinationSettings(name="sink", retry=quick_retry()))


async def until_running(relays: Relays, *names: str) -> None:
    """Wait until these stores are served, or all of them."""

    def are_running() -> bool:
        states = {one.name: one.state for one in relays.stores}
        return bool(states) and all(states.get(name) == "running" for name in names or states)

    await until(are_running)


class ManyStores:
    """SQLite files in a folder, schemas of one PostgreSQL database, and databases of MariaDB or MySQL."""

    def __init__(self, folder: Path, postgres: str, *, mariadb: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.postgres = postgres
        self._mariadb = mariadb or {}
        """URLs by the names of their stores."""
        self._schemas: list[str] = []

    def url(self, name: str) -> str:
        """Return the URL of a store: one whose name begins with `schema_` is a schema."""
        if name in self._mariadb:
            return self._mariadb[name]
        mark = "&" if "?" in self.postgres else "?"
        return (
            f"{self.postgres}{mark}schema={name}"
            if name.startswith("schema_")
            else f"sqlite:///{self.folder}/{name}.db"
        )

    async def install(self, *names: str) -> dict[str, str]:
        """Create the tables of these stores; return their URLs."""
        for name in names:
            self._schemas += [name] if name.startswith("schema_") else []
            await open_schema(self.url(name)).install()
        return {name: self.url(name) for name in names}

    async def put(self, name: str, numbers: Sequence[int], *, keys: int = 3) -> None:
        """Commit messages: numbered, with keys in turn, the name of the store as topic."""
        schema = name if name.startswith("schema_") else None
        outbox = Outbox(routes=Routes([Route(to=["sink"])]), source="/test", schema=schema)
        if name in self._mariadb:
            await asyncio.to_thread(self._put_mariadb, outbox, name, numbers, keys)
            return
        if schema is None:
            await asyncio.to_thread(self._put_file, outbox, name, numbers, keys)
            return
        connection = await asyncpg.connect(self.postgres)
        try:
            async with connection.transaction():
                for number in numbers:
                    await outbox.publish(connection, f"{number}".encode(), **_build_options(name, number, keys))
        finally:
            await connection.close()

    def _put_file(self, outbox: Outbox, name: str, numbers: Sequence[int], keys: int) -> None:
        with closing(sqlite3.connect(self.folder / f"{name}.db", timeout=60, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            for number in numbers:
                outbox.publish(connection, f"{number}".encode(), **_build_options(name, number, keys))
            connection.execute("commit")

    def _put_mariadb(self, outbox: Outbox, name: str, numbers: Sequence[int], keys: int) -> None:
        with closing(connected(self._mariadb[name])) as connection:
            for number in numbers:
                outbox.publish(connection, f"{number}".encode(), **_build_options(name, number, keys))
            connection.commit()

    async def execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self.postgres)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def drop(self, schema: str) -> None:
        """Drop a schema that is in use. Its locks may be in the way of those of a relay, and one of both gives up."""
        while True:
            try:
                return await self.execute(f'drop schema if exists "{schema}" cascade')
            except asyncpg.DeadlockDetectedError:
                continue

    @asynccontextmanager
    async def locked(self, name: str, table: str = "pillarbox_relay") -> AsyncIterator[None]:
        """Lock a table of a schema, or the whole file, against everybody else while the block runs."""
        if name.startswith("schema_"):
            connection = await asyncpg.connect(self.postgres)
            try:
                async with connection.transaction():
                    await connection.execute(f'lock table "{name}".{table} in access exclusive mode')
                    yield
            finally:
                await connection.close()
            return
        with closing(sqlite3.connect(self.folder / f"{name}.db", timeout=60, isolation_level=None)) as opened:
            opened.execute("begin immediate")
            yield
            opened.execute("rollback")

    async def clean(self) -> None:
        for name in self._schemas:
            await self.drop(name)


def _build_options(name: str, number: int, keys: int) -> dict[str, Any]:
    return {"type": "counted", "topic": name, "key": f"{number % keys}", "content_type": "text/plain"}


def list_numbers(sink: Script, name: str) -> list[int]:
    """List what arrived from a store, in order."""
    return [int(message.payload) for message in sink.taken if message.topic == name]
