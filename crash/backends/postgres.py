"""PostgreSQL: a schema in a database of the run's own, and connections that tell of their statements."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from crash.backends.unserved import Unserved
from crash.mine import Mine
from crash.parcels import Parcel
from pillarbox.names import Names
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url
from tests.postgres_server import PostgresServer, scratch_database, scratch_schema
from tests.servers import found

__all__ = ["PostgresPlace", "in_database", "served", "wire"]

_TABLE: Final = b"create table parcel (subject text primary key, key text not null, number integer not null)"


class PostgresPlace:
    """A schema. Writers use psycopg, and wait for the disk as they always should."""

    def __init__(self, url: str, schema: str | None) -> None:
        self.names = Names(schema)
        self._url = urlsplit(url)._replace(query="").geturl()
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(f'set search_path = "{schema}"'.encode())

    def url(self, *, in_transactions: bool = False) -> str:
        """The store runs its hottest statements without a transaction around them, except behind a pooler."""
        return f"{self._url}?pooler=transaction" if in_transactions else self._url

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        return self._connection.execute(sql.replace("?", "%s").encode(), values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._connection.transaction():
            yield self._connection

    def book(self, handle: psycopg.Connection[Any], parcel: Parcel) -> None:
        handle.execute("insert into parcel values (%s, %s, %s)", (parcel.subject, parcel.key, parcel.number))

    def install(self) -> None:
        """Make the tables."""
        asyncio.run(schema_at(store_url(self._url), names=self.names).install())
        self._connection.execute(_TABLE)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def served() -> Iterator[Callable[[Path], AbstractContextManager[PostgresPlace]]]:
    """Found as the tests find it; there it is told as a failed or skipped test."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(found(PostgresServer(), environ={**os.environ, "CI": "true"}))
        except pytest.fail.Exception as error:
            raise Unserved(str(error.msg)) from None
        yield in_database(stack.enter_context(scratch_database(url)))


def in_database(url: str) -> Callable[[Path], AbstractContextManager[PostgresPlace]]:
    """Each place is a schema of its own in this database."""

    @contextmanager
    def place(folder: Path) -> Iterator[PostgresPlace]:
        del folder
        with scratch_schema(url) as schema, closing(PostgresPlace(url, schema)) as made:
            made.install()
            yield made

    return place


# --- in the process that dies ---


def wire(mine: Mine) -> None:
    """Every pooled connection of this process tells the mine."""
    create_pool = asyncpg.create_pool

    def wired(dsn: str, *, connection_class: type[Any], **options: Any) -> Any:
        return create_pool(dsn, connection_class=_telling(connection_class, mine), **options)

    asyncpg.create_pool = wired  # type: ignore[assignment]


def _telling(connection_class: type[Any], mine: Mine) -> type[Any]:
    class Telling(connection_class):  # type: ignore[misc]
        async def execute(self, query: str, *values: Any, **options: Any) -> Any:
            if query.upper().startswith("COMMIT"):
                mine.commits()
            status = await super().execute(query, *values, **options)
            mine.ran(query, changed=_rows_of(status))
            return status

        async def fetch(self, query: str, *values: Any, **options: Any) -> Any:
            rows = await super().fetch(query, *values, **options)
            mine.ran(query, changed=len(rows))
            return rows

        async def fetchrow(self, query: str, *values: Any, **options: Any) -> Any:
            row = await super().fetchrow(query, *values, **options)
            mine.ran(query, changed=_number(row and row[0]))
            return row

        async def fetchval(self, query: str, *values: Any, **options: Any) -> Any:
            value = await super().fetchval(query, *values, **options)
            mine.ran(query, changed=_number(value))
            return value

    return Telling


def _rows_of(status: str) -> int:
    """From `DELETE 3` or `INSERT 0 3`."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def _number(value: object) -> int:
    """Statements that change rows and answer with one value count them."""
    return value if isinstance(value, int) else 0
