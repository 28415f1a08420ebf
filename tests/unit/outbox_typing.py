"""Read by mypy, never run: what a type checker knows about `publish` and `send`."""

from __future__ import annotations

from collections.abc import Awaitable
from sqlite3 import Connection as Sqlite
from typing import Any, assert_type
from uuid import UUID

from aiosqlite import Connection as Aiosqlite
from asyncmy.connection import Connection as Asyncmy
from asyncpg import Connection as Asyncpg
from asyncpg.pool import PoolConnectionProxy
from psycopg import AsyncConnection as AsyncPsycopg
from psycopg import Connection as Psycopg
from sqlalchemy import Connection as SqlAlchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from pillarbox import Outbox


def sync_handles(outbox: Outbox, one: Sqlite, two: Psycopg[Any], three: SqlAlchemy, four: Session) -> None:
    assert_type(outbox.publish(one, object(), key=1), UUID)
    assert_type(outbox.publish(two, object(), type="t"), UUID)
    assert_type(outbox.publish(three, [object()]), list[UUID])
    assert_type(outbox.publish(four, b"bytes", type="t", content_type="a/b"), UUID)
    assert_type(outbox.send(four, (object(),)), list[UUID])
    assert_type(outbox.send(one, {"a": 1}, type="t"), UUID)


async def async_handles(
    outbox: Outbox,
    *,
    one: Aiosqlite,
    two: AsyncPsycopg[Any],
    three: Asyncpg[Any],
    four: PoolConnectionProxy[Any],
    five: AsyncConnection,
    six: AsyncSession,
    seven: Asyncmy,
) -> None:
    assert_type(await outbox.publish(one, object(), key=None), UUID)
    assert_type(await outbox.publish(two, object()), UUID)
    assert_type(await outbox.publish(three, [object()]), list[UUID])
    assert_type(await outbox.publish(four, object()), UUID)
    assert_type(await outbox.send(five, object()), UUID)
    assert_type(await outbox.publish(seven, object()), UUID)
    pending = outbox.send(six, [object()])
    assert_type(await pending, list[UUID])
    found: Awaitable[list[UUID]] = pending
    await found


def refused(outbox: Outbox, tx: Sqlite, handle: Aiosqlite) -> None:
    outbox.publish(object(), object())  # type: ignore[call-overload]
    outbox.publish(tx, object(), colour="red")  # type: ignore[call-overload]
    outbox.publish(tx, object(), key=1.5)  # type: ignore[call-overload]
    outbox.publish(handle, object())  # type: ignore[unused-awaitable]
