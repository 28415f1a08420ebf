"""A timeout that counts from the last progress."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from pillarbox.progress import Slots, StallTimeout, note_progress

SHORT = 0.05
LONG = 600.0


async def wait_in_steps(total: float, *, steps: int) -> None:
    for _ in range(steps):
        await asyncio.sleep(total / steps)
        note_progress()


async def test_it_ends_a_block_in_which_nothing_moves() -> None:
    with pytest.raises(TimeoutError):
        async with StallTimeout(SHORT):
            await asyncio.sleep(LONG)


async def test_what_moves_is_not_ended() -> None:
    """Twice as long as the timeout, and a twentieth of it at a time."""
    async with StallTimeout(2.0):
        await wait_in_steps(4.0, steps=40)


async def test_a_measure_that_changes_is_progress() -> None:
    moved = 0

    async def move() -> None:
        nonlocal moved
        for _ in range(40):
            await asyncio.sleep(0.1)
            moved += 1

    async with StallTimeout(2.0, measure=lambda: moved):
        await move()


async def test_progress_inside_is_progress_outside() -> None:
    async with StallTimeout(2.0), StallTimeout(LONG):
        await wait_in_steps(4.0, steps=40)


async def test_what_waits_for_a_slot_moves_with_those_that_hold_one() -> None:
    slots, ended = Slots(1), []

    async def send(name: str) -> None:
        async with StallTimeout(2.0), slots.hold():
            await wait_in_steps(1.5, steps=15)
            ended.append(name)

    await asyncio.gather(*(send(name) for name in "abc"))
    assert ended == ["a", "b", "c"]


async def test_what_waits_for_a_slot_ends_with_those_that_hold_one_and_hang() -> None:
    slots = Slots(1)

    async def send() -> None:
        async with StallTimeout(SHORT), slots.hold():
            await asyncio.sleep(LONG)

    assert {type(end) for end in await asyncio.gather(send(), send(), return_exceptions=True)} == {TimeoutError}


async def test_outside_of_a_send_there_is_nothing_to_note() -> None:
    note_progress()
    async with Slots(1).hold():
        note_progress()


async def test_a_coroutine_that_is_closed_in_another_context_ends_and_leaves_its_slot() -> None:
    """The garbage collector closes what is left of an event loop."""
    slots = Slots(1)

    async def send() -> None:
        async with StallTimeout(LONG), slots.hold():
            await asyncio.get_running_loop().create_future()

    sending = send()
    copy_context().run(sending.send, None)
    sending.close()
    async with StallTimeout(SHORT), slots.hold():
        pass


async def test_another_cancellation_is_left_alone() -> None:
    async def hang() -> None:
        async with StallTimeout(LONG):
            await asyncio.sleep(LONG)

    task = asyncio.create_task(hang())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
