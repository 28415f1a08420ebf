"""Key scheduler of a consumer: who runs beside whom, and in which order."""

from __future__ import annotations

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer.key_scheduler import KeyScheduler, PendingMessage
from pillarbox.decoding import to_cloudevent
from tests.support.consumer.scene import tick


def pend(number: int, key: str | None = None, *, is_alone: bool = False) -> PendingMessage:
    queue = MemoryQueue()
    queue.put(tick(number, key))
    (received,) = queue.take(MemoryReceiver(queue), 1)
    return PendingMessage(received=received, event=to_cloudevent(received), is_alone=is_alone)


def build(*messages: PendingMessage, concurrency: int = 4) -> KeyScheduler:
    scheduler = KeyScheduler(concurrency=concurrency, key_limit=10)
    for message in messages:
        scheduler.add(message)
    return scheduler


def test_a_message_that_is_to_be_alone_waits_until_nothing_runs() -> None:
    first, alone = pend(1, "a"), pend(2, "b", is_alone=True)
    scheduler = build(first, alone)
    assert scheduler.start_next() is first
    assert scheduler.start_next() is None
    scheduler.finish(first)
    assert scheduler.start_next() is alone


def test_nothing_starts_beside_a_message_that_is_alone() -> None:
    alone, other = pend(1, "a", is_alone=True), pend(2, "b")
    scheduler = build(alone, other)
    assert scheduler.start_next() is alone
    assert scheduler.start_next() is None
    scheduler.finish(alone)
    assert scheduler.start_next() is other


def test_a_message_that_waits_for_its_next_attempt_keeps_its_place_before_the_next_of_its_key() -> None:
    first, second, other = pend(1, "a"), pend(2, "a"), pend(3, "b")
    scheduler = build(first, second, other)
    assert scheduler.start_next() is first
    scheduler.suspend(first)
    assert [scheduler.start_next(), scheduler.start_next()] == [other, None]
    scheduler.resume(first)
    assert [scheduler.start_next(), scheduler.start_next()] == [first, None]
    scheduler.finish(first)
    assert scheduler.start_next() is second


def test_no_more_run_at_once_than_allowed() -> None:
    scheduler = build(*(pend(number, f"k{number}") for number in range(3)), concurrency=2)
    started = [scheduler.start_next() for _ in range(3)]
    assert started[2] is None
    assert None not in started[:2]
