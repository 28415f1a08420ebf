"""From commit to delivery, one message at a time on an idle relay, beside a bare LISTEN/NOTIFY loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from benchmarks.comparison import Pair, at_most, log, report
from benchmarks.database import PAYLOAD, URL, create_tables
from benchmarks.relay.runner import SETTINGS, make_relay, make_store
from benchmarks.relay.transports import DeliveryCounter, NoOpTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, Names, compute_partition, new_message_id

__all__ = ["latency"]

_MESSAGES: Final = 200
_PAUSE: Final = 0.25
"""Seconds between two messages: the relay goes idle in them."""

_INSERT: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values ($1, 'default', $2, 'event', 'orders.placed', 'orders', $3, $4, 'application/json', '/shop', 'c', now())"""
_TAKE: Final = "delete from pillarbox_outbox where waits is null returning *"


class _TimingTransport(NoOpTransport):
    """Records when the last message arrived."""

    def __init__(self) -> None:
        super().__init__(DeliveryCounter())
        self.arrived = asyncio.Event()
        self.at = 0.0

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.at = time.perf_counter()
        self.arrived.set()
        return await super().send(messages)


async def latency() -> None:
    """`relay.latency`: the median in milliseconds, against that of the bare loop, one message of each in turn."""
    async with (
        create_tables("pillarbox_bench_latency") as (_, names),
        create_tables("pillarbox_bench_bare") as (other, bare),
    ):
        await other.execute(bare.qualify("alter table pillarbox_outbox disable trigger user"))
        transport, writer = _TimingTransport(), await asyncpg.connect(URL)
        async with make_relay(make_store(names), default=transport), _run_bare_listener(bare) as heard:
            await asyncio.sleep(3)
            pairs = []
            for _ in range(_MESSAGES):
                ours = await _one(writer, names, transport.arrived, lambda: transport.at)
                theirs = await _one(writer, bare, heard.arrived, lambda: heard.at, notify=True)
                pairs.append(Pair(ours, theirs))
        await writer.close()
        _report(pairs)


async def _one(
    writer: asyncpg.Connection[Any],
    names: Names,
    arrived: asyncio.Event,
    at: Callable[[], float],
    *,
    notify: bool = False,
) -> float:
    """Return the milliseconds from sending COMMIT to the delivery of the message."""
    await asyncio.sleep(_PAUSE)
    arrived.clear()
    transaction = writer.transaction()
    await transaction.start()
    message_id = new_message_id()
    key = str(message_id)
    await writer.execute(names.qualify(_INSERT), message_id, compute_partition(key, message_id), key, PAYLOAD)
    if notify:
        await writer.execute("select pg_notify('pillarbox_bench', '')")
    began = time.perf_counter()
    await transaction.commit()
    await arrived.wait()
    return (at() - began) * 1_000


class _Listener:
    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.notified = asyncio.Event()
        self.at = 0.0


@asynccontextmanager
async def _run_bare_listener(names: Names) -> AsyncIterator[_Listener]:
    """Read and delete rows at each notification: a message counts as delivered when it was read."""
    listener, reader, listener_state = await asyncpg.connect(URL), await asyncpg.connect(URL), _Listener()
    await listener.add_listener("pillarbox_bench", lambda *_: listener_state.notified.set())
    task = asyncio.create_task(_take(reader, names, listener_state))
    try:
        yield listener_state
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listener.close()
        await reader.close()


async def _take(reader: asyncpg.Connection[Any], names: Names, listener_state: _Listener) -> None:
    while True:
        await listener_state.notified.wait()
        listener_state.notified.clear()
        if await reader.fetch(names.qualify(_TAKE)):
            listener_state.at = time.perf_counter()
            listener_state.arrived.set()


def _report(pairs: list[Pair]) -> None:
    ours, bare = zip(*pairs, strict=True)
    settings = {
        "messages": _MESSAGES,
        "p99_ms": round(statistics.quantiles(ours, n=100)[98], 3),
        "bare_p99_ms": round(statistics.quantiles(bare, n=100)[98], 3),
        "seconds_between": _PAUSE,
    }
    log(f"relay.latency: p50 {statistics.median(ours):.2f} ms against {statistics.median(bare):.2f} ms")
    report("relay.latency", pairs, target=at_most(3.0), settings=settings | SETTINGS, fields=("p50_ms", "bare_p50_ms"))
