"""From commit to delivery, one message at a time on an idle relay, beside a bare LISTEN/NOTIFY loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from benchmarks.database import PAYLOAD, URL, tables
from benchmarks.measuring import Pair, at_most, report, talk
from benchmarks.relay.running import SETTINGS, relay_over, store_at
from benchmarks.relay.transports import NoOp, Tally
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, Names, compute_partition, new_message_id

__all__ = ["latency"]

_MESSAGES: Final = 200
_QUIET: Final = 0.25
"""Seconds between two messages: the relay goes to sleep in them."""

_INSERT: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values ($1, 'default', $2, 'event', 'orders.placed', 'orders', $3, $4, 'application/json', '/shop', 'c', now())"""
_TAKE: Final = "delete from pillarbox_outbox where waits is null returning *"


class _Timing(NoOp):
    """Knows when the last message arrived."""

    def __init__(self) -> None:
        super().__init__(Tally())
        self.arrived = asyncio.Event()
        self.at = 0.0

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.at = time.perf_counter()
        self.arrived.set()
        return await super().send(messages)


async def latency() -> None:
    """`relay.latency`: the median in milliseconds, ours beside the bare loop's, one of each in turn."""
    async with tables("pillarbox_bench_latency") as (_, names), tables("pillarbox_bench_bare") as (other, bare):
        await other.execute(bare.qualify("alter table pillarbox_outbox disable trigger user"))
        transport, writer = _Timing(), await asyncpg.connect(URL)
        async with relay_over(store_at(names), default=transport), _listening(bare) as heard:
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
    """Milliseconds from the moment that COMMIT is sent until the message is delivered."""
    await asyncio.sleep(_QUIET)
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


class _Ear:
    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.rung = asyncio.Event()
        self.at = 0.0


@asynccontextmanager
async def _listening(names: Names) -> AsyncIterator[_Ear]:
    """Takes what is there whenever it is notified: a message counts as delivered when it has been read."""
    listener, reader, ear = await asyncpg.connect(URL), await asyncpg.connect(URL), _Ear()
    await listener.add_listener("pillarbox_bench", lambda *_: ear.rung.set())
    task = asyncio.create_task(_take(reader, names, ear))
    try:
        yield ear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listener.close()
        await reader.close()


async def _take(reader: asyncpg.Connection[Any], names: Names, ear: _Ear) -> None:
    while True:
        await ear.rung.wait()
        ear.rung.clear()
        if await reader.fetch(names.qualify(_TAKE)):
            ear.at = time.perf_counter()
            ear.arrived.set()


def _report(pairs: list[Pair]) -> None:
    ours, bare = zip(*pairs, strict=True)
    settings = {
        "messages": _MESSAGES,
        "p99_ms": round(statistics.quantiles(ours, n=100)[98], 3),
        "bare_p99_ms": round(statistics.quantiles(bare, n=100)[98], 3),
        "seconds_between": _QUIET,
    }
    talk(f"relay.latency: p50 {statistics.median(ours):.2f} ms against {statistics.median(bare):.2f} ms")
    report("relay.latency", pairs, wanted=at_most(3.0), settings=settings | SETTINGS, fields=("p50_ms", "bare_p50_ms"))
