"""A consumer handles each message once in effect, in order per key, and loses none."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace

from pillarbox import context
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.clock import FrozenClock
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.consumer.unit_of_work import UnitOfWork, build_transactions
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.errors import ConfigError
from pillarbox.inbox import Inbox
from pillarbox.retry import RetryPolicy
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until


class Scene:
    def __init__(self, *, settings: ConsumerSettings = QUICK) -> None:
        self.queue = MemoryQueue()
        self.store = MemoryStore()
        self.consumer = Consumer(
            "clock", receiver=MemoryReceiver(self.queue), database=self.store, settings=settings, types=TYPES
        )
        self.seen: list[int] = []

    def records(self, status: str) -> set[str]:
        return {message_id for (_, _, message_id), row in self.store.data.inbox.items() if row.status == status}

    def put(self, *events: CloudEvent) -> None:
        for event in events:
            self.queue.put(event)

    async def drained(self) -> None:
        await until(lambda: not self.queue.waiting and not self.queue.unacknowledged)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def remembering(scene: Scene) -> None:
    @scene.consumer.on(Ticked)
    def note(event: Ticked) -> None:
        scene.seen.append(event.number)


async def test_a_message_is_handled_recorded_and_acknowledged(scene: Scene) -> None:
    remembering(scene)
    scene.put(tick(1))
    async with scene.consumer:
        await scene.drained()
    assert scene.seen == [1]
    assert scene.records("done") == {"m1"}
    assert len(scene.queue.acknowledged) == 1


async def test_a_duplicate_does_nothing_and_is_acknowledged(scene: Scene) -> None:
    remembering(scene)
    scene.put(tick(1), tick(1), tick(1))
    async with scene.consumer:
        await scene.drained()
    assert scene.seen == [1]
    assert scene.store.data.inbox["clock", "/clock", "m1"].duplicates == 2


async def test_messages_of_a_key_are_handled_in_order_also_around_a_failing_one(scene: Scene) -> None:
    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        scene.seen.append(event.number)
        if event.number == 2 and scene.seen.count(2) < 3:
            raise ValueError("not yet")

    scene.put(*(tick(number, "a") for number in range(1, 6)))
    async with scene.consumer:
        await scene.drained()
    assert scene.seen == [1, 2, 2, 2, 3, 4, 5]


async def test_other_keys_go_on_while_one_waits(scene: Scene) -> None:
    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.key == "bad":
            raise ValueError("never")
        scene.seen.append(event.number)

    slow = msgspec.structs.replace(QUICK, retry=RetryPolicy(attempts=2, first=timedelta(hours=1)))
    scene = Scene(settings=slow)
    scene.consumer.on(Ticked)(handle)
    scene.put(tick(1, "bad"), *(tick(number, "good") for number in range(2, 30)))
    async with scene.consumer:
        await until(lambda: len(scene.queue.acknowledged) == 28)
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m1"]


async def test_what_always_fails_is_kept_with_its_error_and_the_next_goes(scene: Scene) -> None:
    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.number == 1:
            raise ValueError("no such account")
        scene.seen.append(event.number)

    scene.put(tick(1, "a"), tick(2, "a"))
    async with scene.consumer:
        await scene.drained()
    assert scene.seen == [2]
    row = scene.store.data.inbox["clock", "/clock", "m1"]
    assert (row.status, row.attempts, row.last_error) == ("failed", 3, "ValueError: no such account")
    assert row.message is not None


async def test_what_cannot_be_read_is_kept_and_blocks_nobody(scene: Scene) -> None:
    remembering(scene)
    scene.queue.put_raw({"ce-specversion": "1.0", "ce-id": "x"}, b"{}")
    scene.put(tick(2, payload=b"{"), tick(3, payload=b'{"number": "many"}'), tick(4))
    async with scene.consumer:
        await scene.drained()
    assert scene.seen == [4]
    assert scene.records("failed") == {"1", "m2", "m3"}


async def test_a_plain_message_is_handled_too() -> None:
    scene = Scene()
    bodies: list[object] = []
    scene.consumer.on("memory")(bodies.append)
    scene.queue.put_raw({"content-type": "application/json", "tenant": "shop"}, b'{"plain": true}')
    async with scene.consumer:
        await scene.drained()
    assert bodies == [{"plain": True}]
    assert scene.records("done") == {"1"}


@pytest.mark.parametrize(("policy", "failed"), [("ignore", set()), ("fail", {"m1"})])
async def test_an_unknown_type_is_ignored_or_kept(policy: str, failed: set[str]) -> None:
    scene = Scene(settings=msgspec.structs.replace(QUICK, unknown=policy))
    remembering(scene)
    scene.put(tick(1, type="unheard.of"), tick(2))
    async with scene.consumer:
        await scene.drained()
    assert (scene.seen, scene.records("failed")) == ([2], failed)


async def test_a_failed_one_is_handled_again_when_a_person_wants_it(scene: Scene) -> None:
    mended = False

    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if not mended:
            raise ValueError("broken")
        scene.seen.append(event.number)

    scene.put(tick(1))
    async with scene.consumer:
        await until(lambda: scene.records("failed"))
        mended = True
        key = ("clock", "/clock", "m1")
        row = scene.store.data.inbox[key]
        scene.store.data.inbox[key] = msgspec.structs.replace(row, status="started", attempts=0)
        await until(lambda: scene.records("done"))
    assert scene.seen == [1]


async def test_a_handler_publishes_in_its_transaction_with_the_context_of_its_message(scene: Scene) -> None:
    causes: list[context.Context] = []

    @scene.consumer.on(Ticked)
    def handle(event: Ticked, tx: MemoryTransaction, message: CloudEvent) -> None:
        causes.append(context.current())
        assert message.message_id == f"m{event.number}"
        assert isinstance(tx, MemoryTransaction)

    scene.put(tick(1))
    async with scene.consumer:
        await scene.drained()
    assert [(one.correlation_id, one.causation_id) for one in causes] == [("c", "m1")]


async def test_stopping_lets_a_handler_end_and_gives_the_rest_back() -> None:
    scene = Scene(settings=msgspec.structs.replace(QUICK, concurrency=1, prefetch=10))
    loop, began, go = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(30)
        scene.seen.append(event.number)

    async def let_go() -> None:
        await until(lambda: scene.consumer._is_finishing)
        go.set()

    scene.put(*(tick(number) for number in range(1, 6)))
    async with scene.consumer, asyncio.TaskGroup() as others:
        await began.wait()
        others.create_task(let_go())
        scene.consumer.stop()
    assert scene.seen == [1]
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m2", "m3", "m4", "m5"]
    assert not scene.queue.unacknowledged


async def test_a_handler_that_takes_too_long_after_a_stop_and_what_waits_for_its_attempt_go_back() -> None:
    again = RetryPolicy(attempts=9, first=timedelta(hours=1))
    scene = Scene(settings=msgspec.structs.replace(QUICK, retry=again, stop_timeout=timedelta(0)))
    began, failed, released = threading.Event(), threading.Event(), threading.Event()

    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        if event.number == 1:
            failed.set()
            raise ValueError("not yet")
        began.set()
        released.wait(60)
        raise ValueError("too late")

    scene.put(tick(1, "a"), tick(2, "a"), tick(3, "b"))
    try:
        async with asyncio.timeout(30), scene.consumer:
            await until(lambda: began.is_set() and failed.is_set())
    finally:
        released.set()
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m1", "m2", "m3"]
    assert (scene.queue.unacknowledged, scene.queue.acknowledged) == ({}, [])
    assert scene.records("done") == set()


class Deadly:
    """Consumers over one queue, one after the other, each of which dies as soon as it handles message 1."""

    def __init__(self) -> None:
        self.scene = Scene(settings=msgspec.structs.replace(QUICK, deaths=3, stop_timeout=timedelta(0)))
        self.company: list[int] = []
        """For each death, how many others were being handled beside the message."""
        self.handled: list[int] = []

    async def run(self) -> bool:
        """Run one until it dies, or has nothing left to do; return whether it died."""
        scene, dying, dead, running = self.scene, threading.Event(), threading.Event(), set[int]()
        consumer = Consumer(
            "clock", receiver=MemoryReceiver(scene.queue), database=scene.store, settings=scene.consumer.settings,
            types=TYPES,
        )  # fmt: skip

        @consumer.on(Ticked)
        def handle(event: Ticked) -> None:
            if event.number == 1:
                self.company.append(len(running))
                dying.set()
                dead.wait(30)
                raise ValueError("the process is gone")
            running.add(event.number)
            dying.wait(0.2)  # long enough for the deadly one to come, if it may come beside this one
            running.discard(event.number)
            self.handled.append(event.number)

        async with consumer:
            await until(lambda: dying.is_set() or not (scene.queue.waiting or scene.queue.unacknowledged))
            consumer.stop()
            dead.set()
        return dying.is_set()


async def test_a_message_that_kills_its_consumer_is_handled_alone_and_given_up() -> None:
    """At first beside others, then again, since the first death may have another cause, then three times alone."""
    deadly = Deadly()
    scene, count = deadly.scene, 1
    is_dead = True
    while is_dead:
        scene.put(tick(1, "k1")) if count == 1 else None
        count += 1
        scene.put(tick(count, f"k{count}"))
        is_dead = await deadly.run()
        assert len(deadly.company) < 10
    assert len(deadly.company) == 5
    assert deadly.company[2:] == [0, 0, 0]
    assert set(deadly.handled) == set(range(2, count + 1))
    (failed,) = [row for row in scene.store.data.inbox.values() if row.status == "failed"]
    assert failed.last_error == "the consumer died 3 times while it handled this message alone"
    assert failed.message is not None


async def test_what_is_older_than_the_dedup_window_is_forgotten_and_nothing_else() -> None:
    clock = FrozenClock()
    scene = Scene(settings=msgspec.structs.replace(QUICK, retention=timedelta(hours=2)))
    scene.store = MemoryStore(clock=clock)
    unit = scene.consumer._processor
    unit._unit = UnitOfWork(Inbox("clock"), build_transactions(scene.store), threads=1)
    unit._unit.open()
    for number in (1, 2):
        await unit._run(partial(Inbox("clock").accept, message=tick(number)))
        clock.advance(timedelta(hours=1))
    await unit._run(lambda tx: Inbox("clock").fail(tx, tick(3), error="no", attempts=1, content=b"x"))
    await unit.forget_old()
    assert scene.records("done") == {"m2"}
    clock.advance(timedelta(days=80))
    await unit.forget_old()
    assert (scene.records("done"), scene.records("failed")) == (set(), {"m3"})
    clock.advance(timedelta(days=10))
    await unit.forget_old()
    assert scene.records("failed") == set()
    unit._unit.close()


async def test_a_consumer_without_handlers_is_refused(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="no handler"):
        await scene.consumer.run()


async def test_an_async_handler_does_not_fit_synchronous_transactions(scene: Scene) -> None:
    @scene.consumer.on(Ticked)
    async def handle(event: Ticked) -> None: ...

    with pytest.raises(ConfigError, match="make it a plain function"):
        await scene.consumer.run()


async def test_a_broker_that_is_away_is_waited_for(scene: Scene) -> None:
    remembering(scene)
    scene.queue.is_up = False
    scene.put(tick(1))
    async with scene.consumer:
        await asyncio.sleep(0)
        scene.queue.is_up = True
        await scene.drained()
    assert scene.seen == [1]


# --- how many messages a consumer receives at a time ---

_SMALL: Final = replace(QUICK, concurrency=2, prefetch=8)
_FEW: Final = 2


class CountingReceiver(MemoryReceiver):
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
    receiver = CountingReceiver(queue)
    consumer = receiver.consumer = Consumer(
        "clock", receiver=receiver, database=MemoryStore(), settings=_SMALL, types=TYPES
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
        "clock", receiver=MemoryReceiver(queue), database=MemoryStore(), settings=replace(_SMALL, retry=patient),
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


class DroppingReceiver(MemoryReceiver):
    """Its driver drops a cancellation that comes with the answer, as `asyncio.wait_for` of Python 3.11 does."""

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        try:
            return await super().receive(limit=limit)
        except asyncio.CancelledError:
            return []


async def test_a_consumer_stops_though_its_driver_drops_the_cancellation(scene: Scene) -> None:
    consumer = Consumer("clock", receiver=DroppingReceiver(scene.queue), database=scene.store, types=TYPES)

    @consumer.on(Ticked)
    def note(event: Ticked) -> None:
        scene.seen.append(event.number)

    async with asyncio.timeout(5), consumer:
        scene.put(tick(1))
        await until(lambda: scene.seen == [1])
        await scene.drained()


async def test_the_log_names_the_line_of_code_that_failed(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    @scene.consumer.on(Ticked)
    def handle(event: Ticked) -> None:
        raise KeyError("total")

    scene.put(tick(1))
    async with scene.consumer:
        await scene.drained()
    lines = [one.getMessage() for one in caplog.records if "KeyError" in one.getMessage()]
    assert len(lines) >= 2
    named = {(one.message_id, one.type) for one in caplog.records if "KeyError" in one.getMessage()}  # type: ignore[attr-defined]
    assert named == {("m1", tick(1).type)}, "the last line names another message than those before it"
    assert all(re.search(r"KeyError: 'total' \(at \S*test_consumer\.py, line \d+, in handle\)$", one) for one in lines)
    assert {row.last_error for row in scene.store.data.inbox.values()} == {"KeyError: 'total'"}
