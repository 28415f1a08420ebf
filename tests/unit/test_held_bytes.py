"""Bytes that a receiver holds, and the prefetch and the batches that follow from them."""

from __future__ import annotations

from pillarbox.brokers.held_bytes import BatchSize, HeldBytes, count_bytes
from pillarbox.brokers.rabbitmq.receiver import Prefetch


def test_a_message_counts_until_it_is_removed() -> None:
    held = HeldBytes(100)
    rooms: list[int] = []
    held.on_room = lambda: rooms.append(held.room)
    held.add("a", 60)
    held.add("b", 60)
    assert held.is_full
    assert (held.size, held.count, held.room, held.mean) == (120, 2, 0, 60)
    held.remove("a")
    held.remove("a")
    held.remove("unknown")
    assert (held.size, rooms, held.is_full) == (60, [40], False)
    held.add("b", 70)
    assert held.size == 70
    held.clear()
    assert (held.size, held.count, held.highest) == (0, 0, 120)


def test_headers_count_too() -> None:
    assert count_bytes({"tenant": "shop", "raw": b"12", "number": 5}, b"body") == 4 + 6 + 4 + 3 + 2


def test_the_prefetch_grows_while_messages_are_small() -> None:
    held = HeldBytes(1_000_000)
    prefetch = Prefetch(held, most=2_000)
    counts = [prefetch.start()]
    for _ in range(5_000):
        if (count := prefetch.adapt(10)) is not None:
            counts.append(count)
    assert counts == [1, 8, 64, 512, 2_000]


def test_the_prefetch_leaves_room_for_what_is_held() -> None:
    held = HeldBytes(1_000_000)
    prefetch = Prefetch(held, most=100)
    held.add("a", 10)
    assert prefetch.adapt(10) == 7


def test_the_prefetch_of_large_messages_fits_into_the_bound() -> None:
    held = HeldBytes(1_000)
    prefetch = Prefetch(held, most=2_000)
    assert prefetch.adapt(300) == 3


def test_the_prefetch_shrinks_at_once_when_the_bound_is_reached() -> None:
    held = HeldBytes(1_000)
    prefetch = Prefetch(held, most=2_000)
    for _ in range(600):
        prefetch.adapt(1)
    held.add("large", 1_000)
    assert prefetch.adapt(1_000) == 1
    assert prefetch.start() == 1


def test_a_fixed_or_small_prefetch_stays() -> None:
    held = HeldBytes(1_000)
    for prefetch in (Prefetch(held, most=500, is_fixed=True), Prefetch(held, most=8)):
        first = prefetch.start()
        assert [prefetch.adapt(10) for _ in range(50)] == [None] * 50
        assert first == prefetch.start() > 1


def test_batches_grow_with_small_messages_and_shrink_with_the_largest() -> None:
    size = BatchSize()
    assert size.choose(200, 1_000) == 1
    size.learn([10])
    assert size.choose(200, 1_000) == 8
    size.learn([10] * 8)
    assert size.choose(200, 1_000) == 64
    size.learn([10, 500])
    assert size.choose(200, 1_000) == 2
    assert size.choose(200, 0) == 1
