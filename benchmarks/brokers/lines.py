"""The ways from the table to a broker: the straight line, the relay, and the bare client without any table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import asyncpg

from benchmarks.brokers.broker import Broker, Row
from benchmarks.database import URL, Admin
from pillarbox.contracts.transport import Outcome, Transport
from pillarbox.message import Message, Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.telemetry import Telemetry

__all__ = ["WINDOW", "alone", "relayed", "straight"]

WINDOW: Final = DestinationSettings().window
_READ: Final = """
    select id, message_id, kind, type, topic, key, payload, content_type, source, correlation_id, event_time
      from pillarbox_outbox where id > $1 order by id limit $2"""
_DELETE: Final = "delete from pillarbox_outbox where id = any($1::bigint[])"
_KEEP: Final = f"""
    with closed as ({_DELETE} returning *)
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
        correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error,
           now(), 'delivered'
      from closed"""


async def straight(broker: Broker, names: Names, *, messages: int, history: bool = False) -> float:
    """Read a window of rows, have the bare client send them, delete them; again. On one connection, in one task.

    No claims, no lanes, no order, no retries. With `history`, deleting moves them there, as a relay does by default.
    """
    connection: Admin = await asyncpg.connect(URL)
    await connection.execute("set synchronous_commit = off; set plan_cache_mode = force_generic_plan")
    read, delete = names.qualify(_READ), names.qualify(_KEEP if history else _DELETE)
    low = sent = 0
    started = time.perf_counter()
    while rows := [Row(*row) for row in await connection.fetch(read, low, WINDOW)]:
        await broker.send(rows)
        await connection.execute(delete, [row.id for row in rows])
        low, sent = rows[-1].id, sent + len(rows)
    elapsed = time.perf_counter() - started
    await connection.close()
    assert sent == messages
    return sent / elapsed


async def relayed(broker: Broker, names: Names, *, messages: int) -> float:
    """One relay with default settings, from its start to its graceful end, with all of it settled."""
    transport = _Counted(broker.transport(), messages)
    relay = Relay(PostgresStore(URL, schema=names.schema), [Destination(lambda: transport)], telemetry=Telemetry())
    started = time.perf_counter()
    async with relay:
        await transport.complete.wait()
    elapsed = time.perf_counter() - started
    assert transport.delivered == messages, f"{transport.delivered} deliveries of {messages} messages"
    return messages / elapsed


async def alone(broker: Broker, rows: Sequence[Row]) -> float:
    """The bare client alone, a window at a time, with rows that are there already."""
    started = time.perf_counter()
    for start in range(0, len(rows), WINDOW):
        await broker.send(rows[start : start + WINDOW])
    return len(rows) / (time.perf_counter() - started)


class _Counted:
    """A transport, and how many messages it delivered."""

    def __init__(self, transport: Transport, expected: int) -> None:
        self._transport = transport
        self._expected = expected
        self.features = transport.features
        self.delivered = 0
        self.complete = asyncio.Event()

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def ping(self) -> None:
        await self._transport.ping()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await self._transport.send(messages)
        self.delivered += sum(outcome.delivered for outcome in outcomes)
        if self.delivered >= self._expected:
            self.complete.set()
        return outcomes
