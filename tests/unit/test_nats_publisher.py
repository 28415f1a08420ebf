"""Messages under way: who is answered, and how much may be written."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.brokers.nats.encoding import EncodedMessage
from pillarbox.brokers.nats.errors import PermissionViolation
from pillarbox.brokers.nats.transport import PendingBatches, PublishBatch, Window
from pillarbox.brokers.send_batch import DELIVERED, NotAnswered
from pillarbox.contracts.transport import Outcome

ACK = b'{"stream": "S", "seq": 1}'
REJECTED = Outcome(False, "too large", rejected=True)


def encoded(count: int, *, size: int = 10) -> list[EncodedMessage | Outcome]:
    return [EncodedMessage(f"s.{number}", b"", b"x" * size) for number in range(count)]


class Socket:
    """What was written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, commands: bytes) -> None:
        self.written += commands

    @property
    def count(self) -> int:
        return self.written.count(b"HPUB ")


def wide_window() -> Window:
    return Window(messages=1_000, size=1_000_000)


async def test_each_message_has_a_reply_subject_of_its_own() -> None:
    batch, socket = PublishBatch([*encoded(2), REJECTED], wide_window()), Socket()
    await batch.write(socket.write, reply="_INBOX.7")
    assert [line.split()[2] for line in socket.written.split(b"\r\n") if line.startswith(b"HPUB")] == [
        b"_INBOX.7.0",
        b"_INBOX.7.1",
    ]


async def test_it_is_done_when_all_are_answered() -> None:
    batches = PendingBatches()
    batch = PublishBatch([*encoded(2), REJECTED], wide_window())
    number = batches.add(batch)
    batches.resolve(f"{number}.1", ACK, None)
    assert batch.answers[0] is None
    batches.resolve(f"{number}.0", b"", "503")
    await batch.wait(60, count_sent=lambda: 0)
    first, second, third = batch.answers
    assert isinstance(first, Outcome)
    assert first.missing
    assert (second, third) == (DELIVERED, REJECTED)


async def test_the_first_answer_counts() -> None:
    batch = PublishBatch(encoded(1), wide_window())
    batch.resolve(0, ACK, None)
    batch.resolve(0, b"", "503")
    batch.interrupt("cut")
    assert batch.answers == [DELIVERED]


async def test_an_answer_to_nobody_is_dropped() -> None:
    batches = PendingBatches()
    number = batches.add(PublishBatch(encoded(1), wide_window()))
    batches.resolve(f"{number}.5", ACK, None)
    batches.remove(number)
    batches.resolve(f"{number}.0", ACK, None)


async def test_a_cut_leaves_what_was_answered() -> None:
    batch = PublishBatch(encoded(2), wide_window())
    batch.resolve(0, ACK, None)
    batch.interrupt("cut")
    assert batch.answers == [DELIVERED, NotAnswered("cut")]


async def test_a_refusal_is_for_its_subject_alone() -> None:
    batches = PendingBatches()
    batch = PublishBatch(encoded(2), wide_window())
    batches.add(batch)
    batches.deny(PermissionViolation("publish", "s.1"))
    first, second = batch.answers
    assert first is None
    assert isinstance(second, Outcome)
    assert second.missing


@pytest.mark.parametrize("window", [Window(messages=3, size=1_000_000), Window(messages=1_000, size=150)])
async def test_no_more_is_written_than_the_window_allows(window: Window) -> None:
    batch, socket = PublishBatch(encoded(10), window), Socket()
    writing = asyncio.create_task(batch.write(socket.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    assert socket.count == 3
    for index in range(10):
        batch.resolve(index, ACK, None)
        await asyncio.sleep(0)
        assert socket.count <= index + 1 + 3
    await writing
    assert socket.count == 10


async def test_what_is_larger_than_the_window_goes_alone() -> None:
    batch, socket = PublishBatch(encoded(2, size=100), Window(messages=10, size=10)), Socket()
    writing = asyncio.create_task(batch.write(socket.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    assert socket.count == 1
    batch.resolve(0, ACK, None)
    await writing
    assert socket.count == 2


async def test_what_is_not_waited_for_gives_its_room_back() -> None:
    window, batches = Window(messages=2, size=1_000), PendingBatches()
    batch, socket = PublishBatch(encoded(2), window), Socket()
    number = batches.add(batch)
    await batch.write(socket.write, reply="_INBOX.1")
    assert not window.has_room(1)
    batches.remove(number)
    assert window.has_room(1)
    batch.resolve(0, ACK, None)  # late, and counted once
    assert window._messages == 0


async def test_after_a_cut_nothing_is_written() -> None:
    batch, socket = PublishBatch(encoded(5), Window(messages=2, size=1_000)), Socket()
    writing = asyncio.create_task(batch.write(socket.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    batch.interrupt("cut")
    await writing
    assert socket.count == 2
