"""One line of figures per broker."""

from __future__ import annotations

import statistics
from typing import Final

from benchmarks.brokers.broker import Broker, Row
from benchmarks.brokers.lines import WINDOW, alone, relayed, straight
from benchmarks.database import KEYS, PAYLOAD, Admin, calm, empty, fill, insert, tables
from benchmarks.measuring import RUNS, Rate, at_least, interleaved, report, talk
from pillarbox.message import Names

__all__ = ["measured"]

_SINGLE: Final = 1_000
_BESIDE: Final = 3
"""How often the figures beside the ratio are taken."""
_ROWS: Final = """
    select id, message_id, kind, type, topic, key, payload, content_type, source, correlation_id, event_time
      from pillarbox_outbox order by id"""


async def measured(broker: Broker) -> None:
    """The relay against the straight line, in turn; beside it the bare client alone, and the relay with one key."""
    await broker.open()
    try:
        async with tables(f"pillarbox_bench_{broker.name}") as (admin, names):
            await _measured(broker, admin, names)
    finally:
        await broker.close()


async def _measured(broker: Broker, admin: Admin, names: Names) -> None:
    async def ours() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await relayed(broker, names, messages=broker.messages)
        await broker.empty()
        return rate

    async def bare() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await straight(broker, names, messages=broker.messages)
        await broker.empty()
        return rate

    async def keeping() -> float:
        await fill(admin, names, messages=broker.messages)
        rate = await straight(broker, names, messages=broker.messages, history=True)
        await broker.empty()
        return rate

    pairs = await interleaved(broker.name, ours=ours, bare=bare)
    kept = await _median(keeping)
    client = await _client(broker, admin, names)
    single = await _median(lambda: _single_key(broker, admin, names))
    talk(f"{broker.name}: line with history {kept:,.0f}, bare client alone {client:,.0f}, single key {single:,.0f}")
    settings = {
        "line_with_history": round(kept, 1), "client_alone": round(client, 1), "single_key": round(single, 1),
        "messages": broker.messages, "keys": KEYS, "window": WINDOW, "payload_bytes": len(PAYLOAD), "runs": RUNS,
    }  # fmt: skip
    report(broker.name, pairs, wanted=at_least(0.8), settings=settings)


async def _median(rate: Rate) -> float:
    return statistics.median([await rate() for _ in range(_BESIDE)])


async def _single_key(broker: Broker, admin: Admin, names: Names) -> float:
    """All messages of one key: one after the other, each when the one before is acknowledged."""
    await empty(admin, names)
    await insert(admin, names, messages=_SINGLE, key="'key-1'")
    await calm(admin, names)
    rate = await relayed(broker, names, messages=_SINGLE)
    await broker.empty()
    return rate


async def _client(broker: Broker, admin: Admin, names: Names) -> float:
    await fill(admin, names, messages=broker.messages)
    rows = [Row(*row) for row in await admin.fetch(names.qualify(_ROWS))]

    async def rate() -> float:
        rate = await alone(broker, rows)
        await broker.empty()
        return rate

    return await _median(rate)
