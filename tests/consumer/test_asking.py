"""How many messages a consumer asks its receiver for: not one by one, and never none for ever."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.retry import RetryPolicy
from pillarbox.stores.memory import MemoryStore
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until

_SETTINGS: Final = replace(QUICK, concurrency=2, prefetch=8)
_FEW: Final = 2


class Asked(MemoryReceiver):
    """Remembers how many it was asked for, and whether anything ran then."""

    consumer: Consumer

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__(queue)
        self.limits: list[tuple[int, bool]] = []

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        self.limits.append((limit, self.consumer._scheduler.is_idle))
        return await super().receive(limit=limit)


async def test_while_anything_runs_messages_are_not_asked_for_one_by_one() -> None:
    queue, handled = MemoryQueue(), []
    receiver = Asked(queue)
    consumer = receiver.consumer = Consumer(
        "clock", receiver=receiver, database=MemoryStore(), settings=_SETTINGS, types=TYPES
    )
    consumer.on(Ticked)(lambda event: handled.append(event.number))
    for number in range(40):
        queue.put(tick(number))
    async with consumer:
        await until(lambda: len(queue.acknowledged) == 40)
    assert sorted(handled) == list(range(40))
    assert all(limit >= _FEW or was_idle for limit, was_idle in receiver.limits)
    assert len(receiver.limits) < 40


async def test_when_all_in_hand_wait_for_their_next_attempt_the_last_place_is_used_too() -> None:
    queue, handled = MemoryQueue(), []
    patient = RetryPolicy(attempts=3, first=timedelta(hours=1), longest=timedelta(hours=1))
    consumer = Consumer(
        "clock", receiver=MemoryReceiver(queue), database=MemoryStore(), settings=replace(_SETTINGS, retry=patient),
        types=TYPES,
    )  # fmt: skip

    @consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.number < 7:
            raise ValueError("not today")
        handled.append(event.number)

    for number in range(7):
        queue.put(tick(number, f"k{number}"))
    async with consumer:
        await until(lambda: len(consumer._suspended) == 7)
        queue.put(tick(7, "k7"))
        await until(lambda: handled == [7])
