"""A PostgreSQL schema of its own for each benchmark, with the tables in it, filled by the server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import asyncpg

from pillarbox.message import Names
from pillarbox.stores.postgres.schema import PostgresSchema
from pillarbox.stores.urls import parse_store_url

__all__ = [
    "KEYS",
    "MESSAGE_ID",
    "PARTITION",
    "PAYLOAD",
    "URL",
    "Admin",
    "create_tables",
    "empty",
    "fill",
    "insert",
    "insert_closed",
    "key_sql",
    "vacuum",
]

URL: Final = os.environ.get("PILLARBOX_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
KEYS: Final = 1_000

Admin: TypeAlias = "asyncpg.Connection[Any]"
"""A connection with all rights."""

PAYLOAD: Final = (
    b'{"order_id":"0190f5e2-7a3b-7c11-9d52-1f0c4b8e2a61","customer":"c-12345","total":"129.90",'
    b'"items":[{"sku":"A-1","qty":2,"price":"49.95"},{"sku":"B-7","qty":1,"price":"30.00"}],'
    b'"placed_at":"2026-11-15T12:00:00Z"}'
)

# A UUIDv7, as writers make them: an index over them grows at its end.
MESSAGE_ID: Final = """encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
    substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
    6, 112 + floor(random() * 16)::integer), 'hex')::uuid"""
PARTITION: Final = "get_byte(decode(md5(k), 'hex'), 0) & 63"
_OUTBOX: Final = "pillarbox_outbox"
_INSERT: Final = f"""
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    select {MESSAGE_ID}, $3, {PARTITION}, 'event', 'orders.placed', 'orders', k, $1, 'application/json', '/shop', 'c',
           now()
      from (select /* key */ as k from generate_series(1, $2::integer) i) s"""
_CLOSED: Final = f"""
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, source, correlation_id, event_time, created_at, attempts, status_at,
                                   status)
    select i, {MESSAGE_ID}, 'default', {PARTITION}, 'event', 'orders.placed', 'orders', k, $1, 'application/json',
           '/shop', 'c', now(), now(), 0, now(), 'delivered'
      from (select i, /* key */ as k from generate_series(-$2::bigint, -1) i) s"""


@asynccontextmanager
async def create_tables(schema: str) -> AsyncIterator[tuple[Admin, Names]]:
    """Create the tables, yield a connection and their names, and drop them afterwards."""
    names = Names(schema)
    connection = await asyncpg.connect(URL)
    try:
        await connection.execute(f'drop schema if exists "{schema}" cascade')
        await PostgresSchema(parse_store_url(URL), names=names).install()
        yield connection, names
    finally:
        await connection.execute(f'drop schema if exists "{schema}" cascade')
        await connection.close()


def key_sql(keys: int) -> str:
    """Return the SQL of a key: so many of them, in turn."""
    return f"'key-' || abs(i) % {keys}"


async def fill(connection: Admin, names: Names, *, messages: int) -> None:
    """Empty the tables and insert so many messages, with keys in turn."""
    await empty(connection, names)
    await insert(connection, names, messages=messages)
    await vacuum(connection, names)


async def empty(connection: Admin, names: Names) -> None:
    """Delete all messages, open and closed."""
    await connection.execute(names.qualify("truncate pillarbox_outbox, pillarbox_history, pillarbox_claim"))


async def insert(
    connection: Admin,
    names: Names,
    *,
    messages: int,
    destination: str = "default",
    key: str = key_sql(KEYS),
    table: str = _OUTBOX,
) -> None:
    """Insert so many messages in one transaction. `key` is SQL over the message's number `i`."""
    sql = names.qualify(_INSERT.replace("/* key */", key).replace(_OUTBOX, table))
    await connection.execute(sql, PAYLOAD, messages, destination)


async def insert_closed(connection: Admin, names: Names, *, messages: int) -> None:
    """Insert so many delivered messages, older than all others."""
    await connection.execute(names.qualify(_CLOSED.replace("/* key */", key_sql(KEYS))), PAYLOAD, messages)


async def vacuum(connection: Admin, names: Names) -> None:
    """Clean up after bulk loading, before a measurement starts."""
    await connection.execute(names.qualify("vacuum analyze pillarbox_outbox"))
    await connection.execute(names.qualify("vacuum analyze pillarbox_history"))
    await connection.execute("checkpoint")
