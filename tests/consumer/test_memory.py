"""A consumer tells its receiver the bound in bytes, and takes redriven messages within it."""

from __future__ import annotations

import asyncio
import threading

from msgspec.structs import replace

from pillarbox import Inbox
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.cloudevents import HTTP, to_binary
from pillarbox.consumer import Consumer
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.contracts.store import InboxSelection
from pillarbox.decoding import encode_incoming
from pillarbox.stores.memory import MemoryStore
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until

LARGE = 100_000


def build(number: int) -> IncomingMessage:
    headers, body = to_binary(
        tick(number, f"k{number}", payload=b'{"number": %d}' % number + b" " * LARGE), binding=HTTP
    )
    fallback = FallbackIdentity(message_id=str(number), source="memory:", type="memory", topic="memory")
    return IncomingMessage(headers=headers, body=body, binding=HTTP, fallback=fallback)


def test_a_consumer_tells_its_receiver_the_bound() -> None:
    receiver = MemoryReceiver(MemoryQueue())
    Consumer("clock", receiver=receiver, database=MemoryStore(), settings=replace(QUICK, pending_bytes=4_711))
    assert receiver.pending_bytes == 4_711


async def test_redriven_messages_are_taken_within_the_bound() -> None:
    store, may_end = MemoryStore(), threading.Event()
    handled: list[int] = []
    inbox = Inbox("clock")
    with store.transaction() as tx:
        for number in range(12):
            event = tick(number, f"k{number}")
            inbox.fail(tx, event, error="it failed", attempts=1, content=encode_incoming(build(number)))
    await store.open()
    await store.redrive_inbox(InboxSelection(consumer="clock"), by="a test", limit=100)
    consumer = Consumer(
        "clock", receiver=MemoryReceiver(MemoryQueue()), database=store, types=TYPES,
        settings=replace(QUICK, pending_bytes=3 * LARGE),
    )  # fmt: skip
    highest = 0

    @consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        nonlocal highest
        highest = max(highest, consumer._scheduler.size)
        may_end.wait()
        handled.append(event.number)

    async with consumer:
        await until(lambda: highest >= LARGE)
        for _ in range(10):
            await asyncio.sleep(QUICK.poll_interval.total_seconds())
        may_end.set()
        await until(lambda: len(handled) == 12)
    assert highest <= 4 * LARGE + 1_000
