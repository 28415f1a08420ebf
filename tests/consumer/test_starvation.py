"""Keys that fail or are slow hold up nobody else, over every broker: what waits behind them is set aside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.message import Message
from pillarbox.retry import RetryPolicy
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until
from tests.support.consumer.ways import ALL_WAYS, Way, open_way
from tests.support.writers.places import SqlitePlace

FAILING: Final = 1_300
"""Messages of the failing key: several times what a consumer and its broker have in hand otherwise."""
OTHERS: Final = 60
SETTINGS: Final = ConsumerSettings(
    retry=RetryPolicy(attempts=100, first=timedelta(minutes=5)), stop_timeout=timedelta(seconds=5)
)
"""The defaults, except that the failing key never comes to its end."""


@pytest.fixture(params=ALL_WAYS)
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with open_way(request.param, request) as way:
        yield way


def _messages(keys: list[str]) -> list[Message]:
    return [sample(key=key, payload=b'{"note": "%s"}' % key.encode()) for key in keys]


async def test_a_failing_key_holds_up_no_other(way: Way, tmp_sqlite: Path) -> None:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    consumer = Consumer("billing", receiver=way.receiver(), database=place.path, settings=SETTINGS)
    handled: list[str] = []

    @consumer.on("*")
    def bill(event: Any) -> None:
        if event["note"] == "failing":
            raise ValueError("the account is closed")
        handled.append(event["note"])

    others = [f"key-{number % 20}" for number in range(OTHERS)]
    async with consumer:
        failing = asyncio.create_task(way.send(_messages(["failing"] * FAILING)))
        if way.name == "http":  # its requests wait until their messages are handled
            await until(lambda: consumer._scheduler.set_aside >= SETTINGS.prefetch)
        else:
            await failing
        sending = asyncio.create_task(way.send(_messages(others)))
        await until(lambda: len(handled) >= OTHERS)
        await sending
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
    assert sorted(handled) == sorted(others)


class Full(ConsumerTelemetry):
    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_full(self, consumer: str, *, set_aside: int, size: int) -> None:
        self.counts.append(set_aside)


class Scene:
    """A consumer whose messages with a key below 0 never end."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.queue, self.full, self.seen = MemoryQueue(), Full(), list[int]()
        self.released = asyncio.Event()
        self.consumer = Consumer(
            "clock", receiver=MemoryReceiver(self.queue), database=MemoryStore(), settings=settings, types=TYPES,
            telemetry=self.full,
        )  # fmt: skip

    def fail(self) -> None:
        @self.consumer.on(Ticked)
        def handle(event: Ticked) -> None:
            if event.key is not None and event.key.startswith("failing") and not self.released.is_set():
                raise ValueError("no")
            self.seen.append(event.number)


_SMALL: Final = replace(QUICK, concurrency=2, prefetch=10, retry=SETTINGS.retry)


async def test_many_failing_keys_hold_up_no_other() -> None:
    scene = Scene(_SMALL)
    scene.fail()
    for number in range(200):
        scene.queue.put(tick(number, f"failing-{number % 50}"))
    scene.queue.put(tick(1000, "good"))
    async with scene.consumer:
        await until(lambda: scene.seen == [1000])


async def test_failing_messages_without_a_key_hold_up_no_other() -> None:
    scene = Scene(_SMALL)

    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.number < 100:
            raise ValueError("no")
        scene.seen.append(event.number)

    for number in range(101):
        scene.queue.put(tick(number))
    async with scene.consumer:
        await until(lambda: scene.seen == [100])


async def test_failing_messages_that_come_due_take_turns_with_the_others() -> None:
    """With one slot, and attempts that are due at once, one of the failing ones is always ready."""
    scene = Scene(replace(_SMALL, concurrency=1, retry=RetryPolicy(attempts=10_000, first=timedelta(microseconds=1))))
    scene.fail()
    for number in range(20):
        scene.queue.put(tick(number, f"failing-{number}"))
    for number in range(100, 150):
        scene.queue.put(tick(number, "good"))
    async with scene.consumer:
        await until(lambda: len(scene.seen) == 50)


async def test_a_slow_key_holds_up_no_other() -> None:
    scene, may_end = Scene(_SMALL), asyncio.Event()
    loop = asyncio.get_running_loop()

    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.key == "slow":
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        scene.seen.append(event.number)

    for number in range(200):
        scene.queue.put(tick(number, "slow"))
    scene.queue.put(tick(1000, "good"))
    async with scene.consumer:
        await until(lambda: scene.seen == [1000])
        may_end.set()
        await until(lambda: len(scene.seen) == 201)
    assert [number for number in scene.seen if number < 1000] == list(range(200))


@pytest.mark.parametrize("limit", [{"set_aside": 50}, {"pending_bytes": 1_000}])
async def test_what_is_set_aside_is_bounded_and_told(limit: dict[str, int]) -> None:
    scene = Scene(replace(_SMALL, **limit, retry=replace(QUICK.retry, attempts=100)))
    scene.fail()
    for number in range(300):
        scene.queue.put(tick(number, "failing"))
    async with scene.consumer:
        await until(lambda: scene.full.counts)
        assert len(scene.queue.unacknowledged) <= 50 + _SMALL.prefetch
        assert scene.queue.waiting
        scene.released.set()
        await until(lambda: len(scene.seen) == 300)
    assert scene.seen == list(range(300))
