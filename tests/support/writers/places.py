"""A database with our tables and one business table in it, and an observer who looks from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor

from pillarbox.contracts.writer import Insert
from pillarbox.message import Kind, Message, Names, compute_partition, new_message_id
from pillarbox.stores.migrations import build_statements, read_migrations
from tests.support.mariadb_server import connected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HAPPENED = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Place(Protocol):
    """What the tests ask of each database."""

    @property
    def names(self) -> Names: ...

    @property
    def orders(self) -> str:
        """The business table, as SQL."""

    @property
    def quote(self) -> str:
        """What stands around a name."""

    def install(self) -> None: ...

    def query(self, sql: str) -> list[dict[str, Any]]:
        """What another connection sees."""


@dataclass(frozen=True)
class PostgresPlace:
    url: str

    names: Names
    quote: str = '"'

    @property
    def orders(self) -> str:
        return f'"{self.names.schema}".orders'

    def install(self) -> None:
        with psycopg.connect(self.url, options="-c synchronous_commit=off") as connection:
            connection.execute(self.names.qualify(_migration("postgres")).encode())
            connection.execute(f"create table {self.orders} (id serial primary key, note text)".encode())

    def empty(self) -> None:
        with psycopg.connect(self.url, options="-c synchronous_commit=off") as connection:
            for table in (self.names.table("outbox"), self.names.table("inbox"), self.orders):
                connection.execute(f"delete from {table}".encode())

    def query(self, sql: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(self.names.qualify(sql).encode()).fetchall()


@dataclass(frozen=True)
class SqlitePlace:
    path: Path
    names: Names = field(default_factory=Names)
    orders: str = "orders"
    quote: str = '"'

    def install(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("pragma synchronous = off")
            connection.executescript("begin;" + self.names.qualify(_migration("sqlite")))
            connection.execute("create table orders (id integer primary key, note text)")
            connection.commit()

    def query(self, sql: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(self.names.qualify(sql))]


@dataclass(frozen=True)
class MariadbPlace:
    url: str
    """With the database, which is also the schema of the names."""
    names: Names
    quote: str = "`"

    @property
    def orders(self) -> str:
        return f"`{self.names.schema}`.orders"

    def install(self) -> None:
        orders = f"create table {self.orders} (id integer auto_increment primary key, note text)"
        with closing(connected(self.url)) as connection, connection.cursor() as cursor:
            for statement in (*build_statements("mysql", names=self.names, since=0), orders):
                cursor.execute(statement)
            connection.commit()

    def empty(self) -> None:
        with closing(connected(self.url)) as connection, connection.cursor() as cursor:
            for table in ("outbox", "inbox"):
                cursor.execute(f"delete from {self.names.table(table, quote='`')}")
            cursor.execute(f"delete from {self.orders}")
            connection.commit()

    def query(self, sql: str) -> list[dict[str, Any]]:
        with closing(connected(self.url, cursorclass=DictCursor)) as connection, connection.cursor() as cursor:
            cursor.execute(self.names.qualify(sql, quote="`"))
            return list(cursor.fetchall())


def outbox(place: Place) -> list[Message]:
    """The committed messages, by id."""
    fields = [
        field for field in Message.__struct_fields__ if field not in {"state", "payload_kept", "unreadable", "raw"}
    ]
    columns = ", ".join(f"{place.quote}{field}{place.quote}" for field in fields)
    rows = place.query(f"select {columns} from pillarbox_outbox order by id")
    return [Message(**(row if isinstance(place, PostgresPlace) else _from_numbers(row))) for row in rows]


def subjects(place: Place) -> list[str | None]:
    """The committed messages by the name that the tests gave them, in id order."""
    return [message.subject for message in outbox(place)]


def orders(place: Place) -> list[int]:
    return [row["id"] for row in place.query(f"select id from {place.orders} order by id")]


def message(subject: str = "m", *, key: str | None = None, **changes: Any) -> Message:
    message_id = new_message_id()
    plain = Message(
        id=0,
        message_id=message_id,
        destination="broker",
        partition=compute_partition(key, message_id),
        kind=Kind.EVENT,
        type="orders.placed",
        topic="orders",
        key=key,
        payload=b"{}",
        content_type="application/json",
        headers={},
        source="/shop",
        subject=subject,
        correlation_id=str(message_id),
        causation_id=None,
        event_time=HAPPENED,
    )
    return msgspec.structs.replace(plain, **changes)


def batch(place: Place, *names: str, delay: timedelta | None = None, serialize_keys: bool = False) -> Insert:
    """An insert of one message for each name."""
    messages = [message(name) for name in names]
    return Insert(names=place.names, messages=messages, delay=delay, serialize_keys=serialize_keys)


def _from_numbers(row: dict[str, Any]) -> dict[str, Any]:
    times = {"event_time", "created_at", "available_at", "status_at"}
    aware = {name: _EPOCH + timedelta(microseconds=row[name]) for name in times if row[name] is not None}
    headers = row["headers"] and msgspec.json.decode(row["headers"])
    return row | aware | {"message_id": UUID(row["message_id"]), "headers": headers}


def _migration(store: str) -> str:
    """All versions, in order."""
    return "\n".join(migration.up for migration in read_migrations(files(f"pillarbox.stores.{store}") / "migrations"))
