"""JSON that is nested deeper than a decoder goes is the failure of its own message."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.contracts.store import InboxSelection
from pillarbox.stores.memory import MemoryStore
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until

DEEP = b'{"number": 1, "other": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
DOCUMENT = b'{"specversion": "1.0", "id": "deep", "source": "/clock", "type": "tick", "data": ' + DEEP + b"}"


@pytest.mark.parametrize("is_structured", [False, True])
async def test_deep_json_fails_alone(is_structured: bool) -> None:
    queue, store = MemoryQueue(), MemoryStore()
    handled: list[int] = []
    consumer = Consumer("clock", receiver=MemoryReceiver(queue), database=store, types=TYPES, settings=QUICK)
    consumer.on(Ticked)(lambda event: handled.append(event.number))
    if is_structured:
        queue.put_raw({"content-type": "application/cloudevents+json"}, DOCUMENT)
    else:
        queue.put(tick(1, payload=DEEP))
    queue.put(tick(2))
    async with asyncio.timeout(30), consumer:
        await until(lambda: len(queue.acknowledged) == 2)
    (failure,) = await store.inbox_failures(InboxSelection(consumer="clock"), limit=10)
    assert "recursion" in (failure.error or "")
    assert handled == [2]
