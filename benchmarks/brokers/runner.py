"""Measures a broker: the relay against a bare loop from the table to the broker's own client."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

import asyncpg

from benchmarks.brokers.broker import Broker, Row
from benchmarks.comparison import RUNS, Rate, at_least, log, report, run_pairs
from benchmarks.database import KEYS, PAYLOAD, URL, Admin, create_tables, empty, fill, insert, vacuum
from pillarbox.contracts.transport import Outcome, Transport, find_addressing
from pillarbox.message import Message, Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.telemetry import Telemetry

__all__ = ["measure"]

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


async def run_bare_loop(broker: Broker, names: Names, *, messages: int, history: bool = False) -> float:
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


async def run_relay(broker: Broker, names: Names, *, messages: int) -> float:
    """Run one relay with default settings, from its start to its graceful end, with everything settled."""
    transport = _CountingTransport(broker.transport(), messages)
    relay = Relay(PostgresStore(URL, schema=names.schema), [Destination(lambda: transport)], telemetry=Telemetry())
    started = time.perf_counter()
    async with relay:
        await transport.complete.wait()
    elapsed = time.perf_counter() - started
    assert transport.delivered == messages, f"{transport.delivered} deliveries of {messages} messages"
    return messages / elapsed


async def run_bare_client(broker: Broker, rows: Sequence[Row]) -> float:
    """Send rows with the bare client alone, a window at a time."""
    started = time.perf_counter()
    for start in range(0, len(rows), WINDOW):
        await broker.send(rows[start : start + WINDOW])
    return len(rows) / (time.perf_counter() - started)


class _CountingTransport:
    """A transport that counts deliveries."""

    def __init__(self, transport: Transport, expected: int) -> None:
        self._transport = transport
        self._addressing = find_addressing(transport)
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

    def get_address(self, message: Message) -> str | None:
        return None if self._addressing is None else self._addressing.get_address(message)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await self._transport.send(messages)
        self.delivered += sum(outcome.delivered for outcome in outcomes)
        if self.delivered >= self._expected:
            self.complete.set()
        return outcomes


_SINGLE: Final = 1_000
_BESIDE: Final = 3
"""How often the figures beside the ratio are measured."""
_ROWS: Final = """
    select id, message_id, kind, type, topic, key, payload, content_type, source, correlation_id, event_time
      from pillarbox_outbox order by id"""


async def measure(broker: Broker) -> None:
    """Measure the relay against the bare loop, in turn; then the bare client alone, and the relay with one key."""
    await broker.open()
    try:
        async with create_tables(f"pillarbox_bench_{broker.name}") as (admin, names):
            await _measure(broker, admin, names)
    finally:
        await broker.close()


async def _measure(broker: Broker, admin: Admin, names: Names) -> None:
    async def ours() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await run_relay(broker, names, messages=broker.messages)
        await broker.empty()
        return rate

    async def bare() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await run_bare_loop(broker, names, messages=broker.messages)
        await broker.empty()
        return rate

    async def keeping() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await run_bare_loop(broker, names, messages=broker.messages, history=True)
        await broker.empty()
        return rate

    pairs = await run_pairs(broker.name, ours=ours, bare=bare)
    kept = await _median(keeping)
    client = await _client(broker, admin, names)
    single = await _median(lambda: _single_key(broker, admin, names))
    log(f"{broker.name}: line with history {kept:,.0f}, bare client alone {client:,.0f}, single key {single:,.0f}")
    settings = {
        "line_with_history": round(kept, 1), "client_alone": round(client, 1), "single_key": round(single, 1),
        "messages": broker.messages, "keys": KEYS, "window": WINDOW, "payload_bytes": len(PAYLOAD), "runs": RUNS,
    }  # fmt: skip
    report(broker.name, pairs, target=at_least(0.8), settings=settings)


async def _median(rate: Rate) -> float:
    return statistics.median([await rate() for _ in range(_BESIDE)])


async def _single_key(broker: Broker, admin: Admin, names: Names) -> float:
    """Measure with one key: a run at a time where the transport takes runs, and otherwise a message."""
    await empty(admin, names)
    await insert(admin, names, messages=_SINGLE, key="'key-1'")
    await vacuum(admin, names)
    rate = await run_relay(broker, names, messages=_SINGLE)
    await broker.empty()
    return rate


async def _client(broker: Broker, admin: Admin, names: Names) -> float:
    await fill(admin, names, messages=broker.messages)
    rows = [Row(*row) for row in await admin.fetch(names.qualify(_ROWS))]

    async def rate() -> float:
        rate = await run_bare_client(broker, rows)
        await broker.empty()
        return rate

    return await _median(rate)
