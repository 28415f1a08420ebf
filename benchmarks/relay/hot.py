"""One hot key against many: what a run of a key, several of its messages in one send, is worth on a transport.

A broker of `benchmarks.brokers` is measured by one line, `await compare_broker(Redis())`, and any other transport by
its URL or a function that makes it, `await compare_keys("http", "http://127.0.0.1:8080/hook")`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from benchmarks.brokers.broker import Broker
from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, PAYLOAD, create_tables, empty, insert, key_sql, vacuum
from benchmarks.relay.runner import SETTINGS, make_relay, make_store
from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.handlers import HandlersTransport
from pillarbox.contracts.transport import Transport
from pillarbox.events import Types
from pillarbox.handlers import Handlers
from pillarbox.message import Message, Names
from pillarbox.telemetry import Telemetry

__all__ = ["compare_broker", "compare_keys", "handlers"]

_MESSAGES: Final = 20_000
_TARGET: Final = 0.5
_PATIENCE: Final = 120.0
"""Seconds after which a run has failed."""


async def handlers() -> None:
    """`hot.handlers`: 20,000 messages of one key to a function in the relay, against as many of 1,000 keys."""
    await compare_keys("handlers", _make_handlers_transport)


def _make_handlers_transport() -> Transport:
    handlers = Handlers(types=Types())  # types of its own: other benchmarks declare events of the same name

    @handlers.on("orders.placed")
    async def note(event: object) -> None:
        del event

    return HandlersTransport(handlers)


async def compare_broker(broker: Broker) -> None:
    """Measure a broker that the benchmarks know."""
    await broker.open()
    try:
        await compare_keys(broker.name, broker.transport, clean_up=broker.empty)
    finally:
        await broker.close()


async def compare_keys(
    name: str, transport: str | Callable[[], Transport], *, clean_up: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Print `hot.<name>`: one key against 1,000 keys, each from the relay's start to its graceful end.

    `transport` is a URL, or makes a transport for each run. `clean_up` removes what a run delivered.
    """
    async with create_tables(f"pillarbox_bench_hot_{name}") as (admin, names):

        async def run(keys: int) -> float:
            await empty(admin, names)
            await insert(admin, names, messages=_MESSAGES, key=key_sql(keys))
            await vacuum(admin, names)
            rate = await _drain(names, transport_from_url(transport) if isinstance(transport, str) else transport())
            if clean_up is not None:
                await clean_up()
            return rate

        await compare(
            f"hot.{name}",
            ours=lambda: run(1),
            bare=lambda: run(KEYS),
            target=at_least(_TARGET),
            settings={"messages": _MESSAGES, "keys": KEYS, "payload_bytes": len(PAYLOAD)} | SETTINGS,
        )


async def _drain(names: Names, transport: Transport) -> float:
    delivered = _DeliveredCount(_MESSAGES)
    started = time.perf_counter()
    async with make_relay(make_store(names), telemetry=delivered, default=transport):
        async with asyncio.timeout(_PATIENCE):
            await delivered.complete.wait()
    elapsed = time.perf_counter() - started
    assert delivered.count == _MESSAGES, f"{delivered.count} deliveries of {_MESSAGES} messages"
    return _MESSAGES / elapsed


class _DeliveredCount(Telemetry):
    """Counts what the destination acknowledged."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.count = 0
        self.complete = asyncio.Event()

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        self.count += len(messages)
        if self.count >= self._expected:
            self.complete.set()
