"""Messages under way: who is answered, and how much may be written."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.protocols import Outcome
from pillarbox.transports.answers import DELIVERED, Interrupted
from pillarbox.transports.nats.batches import Batch, Batches
from pillarbox.transports.nats.publications import Publication
from pillarbox.transports.nats.verdicts import NotAllowed
from pillarbox.transports.nats.window import Window

ACK = b'{"stream": "S", "seq": 1}'
REJECTED = Outcome(False, "too large", rejected=True)


def publications(count: int, *, size: int = 10) -> list[Publication | Outcome]:
    return [Publication(f"s.{number}", b"", b"x" * size) for number in range(count)]


class Wire:
    """What was written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, commands: bytes) -> None:
        self.written += commands

    @property
    def count(self) -> int:
        return self.written.count(b"HPUB ")


def wide() -> Window:
    return Window(messages=1_000, size=1_000_000)


async def test_each_message_has_a_reply_subject_of_its_own() -> None:
    batch, wire = Batch([*publications(2), REJECTED], wide()), Wire()
    await batch.write(wire.write, reply="_INBOX.7")
    assert [line.split()[2] for line in wire.written.split(b"\r\n") if line.startswith(b"HPUB")] == [
        b"_INBOX.7.0",
        b"_INBOX.7.1",
    ]


async def test_it_is_done_when_all_are_answered() -> None:
    batches = Batches()
    batch = Batch([*publications(2), REJECTED], wide())
    number = batches.add(batch)
    batches.take(f"{number}.1", ACK, None)
    assert not batch.done.is_set()
    batches.take(f"{number}.0", b"", "503")
    assert batch.done.is_set()
    first, second, third = batch.answers
    assert isinstance(first, Interrupted)
    assert (second, third) == (DELIVERED, REJECTED)


async def test_the_first_answer_counts() -> None:
    batch = Batch(publications(1), wide())
    batch.take(0, ACK, None)
    batch.take(0, b"", "503")
    batch.interrupt("cut")
    assert batch.answers == [DELIVERED]


async def test_an_answer_to_nobody_is_dropped() -> None:
    batches = Batches()
    number = batches.add(Batch(publications(1), wide()))
    batches.take(f"{number}.5", ACK, None)
    batches.remove(number)
    batches.take(f"{number}.0", ACK, None)


async def test_a_cut_leaves_what_was_answered() -> None:
    batch = Batch(publications(2), wide())
    batch.take(0, ACK, None)
    batch.interrupt("cut")
    assert batch.answers == [DELIVERED, Interrupted("cut")]


async def test_a_refusal_is_for_its_subject_alone() -> None:
    batches = Batches()
    batch = Batch(publications(2), wide())
    batches.add(batch)
    batches.forbid(NotAllowed("publish", "s.1"))
    first, second = batch.answers
    assert first is None
    assert isinstance(second, Interrupted)
    assert second.is_outage


@pytest.mark.parametrize("window", [Window(messages=3, size=1_000_000), Window(messages=1_000, size=150)])
async def test_no_more_is_written_than_the_window_allows(window: Window) -> None:
    batch, wire = Batch(publications(10), window), Wire()
    writing = asyncio.create_task(batch.write(wire.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    assert wire.count == 3
    for place in range(10):
        batch.take(place, ACK, None)
        await asyncio.sleep(0)
        assert wire.count <= place + 1 + 3
    await writing
    assert wire.count == 10


async def test_what_is_larger_than_the_window_goes_alone() -> None:
    batch, wire = Batch(publications(2, size=100), Window(messages=10, size=10)), Wire()
    writing = asyncio.create_task(batch.write(wire.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    assert wire.count == 1
    batch.take(0, ACK, None)
    await writing
    assert wire.count == 2


async def test_what_is_not_waited_for_gives_its_room_back() -> None:
    window, batches = Window(messages=2, size=1_000), Batches()
    batch, wire = Batch(publications(2), window), Wire()
    number = batches.add(batch)
    await batch.write(wire.write, reply="_INBOX.1")
    assert not window.has_room(1)
    batches.remove(number)
    assert window.has_room(1)
    batch.take(0, ACK, None)  # late, and counted once
    assert window._taken == 0


async def test_after_a_cut_nothing_is_written() -> None:
    batch, wire = Batch(publications(5), Window(messages=2, size=1_000)), Wire()
    writing = asyncio.create_task(batch.write(wire.write, reply="_INBOX.1"))
    await asyncio.sleep(0)
    batch.interrupt("cut")
    await writing
    assert wire.count == 2
