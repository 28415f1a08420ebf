"""Read by mypy, never run: what a type checker knows about the outbox, the inbox and the writers."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from datetime import timedelta
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

from pillarbox import Consumer, Inbox, Message, Names, Outbox, Relay, open_store
from pillarbox.contracts.writer import Accept, AsyncWriter, Fail, Forget, InboxCommand, Start, TakeRedriven, Writer
from pillarbox.domain_events import Aggregate


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
    outbox.publish(handle, object())  # type: ignore[unused-coroutine]
    outbox.publish(handle, [object()])  # type: ignore[unused-coroutine]
    outbox.send(handle, object())  # type: ignore[unused-coroutine]


async def inbox_results(inbox: Inbox, tx: Sqlite, handle: Aiosqlite, message: Message) -> None:
    assert_type(inbox.accept(tx, message), bool)
    assert_type(inbox.start(tx, message), int)
    assert_type(inbox.redriven(tx), Sequence[bytes])
    assert_type(inbox.forget(tx, older_than=timedelta(1)), int)
    pending = inbox.accept(handle, message)
    assert_type(pending, Coroutine[Any, Any, bool])  # type: ignore[unused-coroutine]
    assert_type(await inbox.accept(handle, message), bool)
    assert_type(await inbox.start(handle, message), int)
    assert_type(await inbox.redriven(handle), Sequence[bytes])
    inbox.accept(handle, message)  # type: ignore[unused-coroutine]
    inbox.fail(handle, message, error="", attempts=1, content=b"")  # type: ignore[unused-coroutine]


async def command_results(writer: Writer, handle: AsyncWriter, accept: Accept, start: Start, fail: Fail) -> None:
    assert_type(writer.execute(accept), bool)
    assert_type(writer.execute(start), int)
    assert_type(writer.execute(TakeRedriven(names=Names(), consumer="c", limit=1)), Sequence[bytes])
    assert_type(writer.execute(Forget(names=Names(), consumer="c", older_than=timedelta(1), limit=1)), int)
    assert_type(await handle.execute(accept), bool)
    assert_type(await handle.execute(start), int)
    nothing: InboxCommand[None] = fail
    wrong: InboxCommand[str] = accept  # type: ignore[assignment]
    del nothing, wrong


def options_of_an_aggregate(aggregate: Aggregate) -> None:
    aggregate.raise_event(object(), key="a", delay=timedelta(1))
    aggregate.raise_event(object(), colour="red")  # type: ignore[call-arg]


def relays_and_consumers() -> None:
    assert_type(Relay("sqlite:///shop.db", {"billing": "amqp://localhost"}), Relay)
    assert_type(Relay(open_store("memory://"), []), Relay)
    assert_type(Relay.from_config("pillarbox.toml"), Relay)
    assert_type(Consumer.from_config("billing", receiver="amqp://localhost", database=object()), Consumer)
    Relay(7, {})  # type: ignore[arg-type]
