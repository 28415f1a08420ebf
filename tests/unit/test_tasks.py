"""Tasks end when they are cancelled, though something below them drops the cancellation."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox import tasks
from pillarbox.tasks import cancel_all, check_cancelled


async def _drop_one_cancellation() -> None:
    """Go on as `asyncio.wait_for` of Python 3.11 does when the answer came at the same moment."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


async def test_a_loop_that_checks_ends_though_the_cancellation_was_dropped() -> None:
    async def loop() -> None:
        while True:
            check_cancelled()
            await _drop_one_cancellation()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel_all([task])
    assert task.cancelled()


async def test_a_task_that_goes_on_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_AGAIN", 0.01)

    async def go_on() -> None:
        await _drop_one_cancellation()
        await asyncio.Event().wait()

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel_all([task])
    assert task.cancelled()


async def test_a_timeout_of_its_own_is_no_cancellation() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    check_cancelled()


async def test_what_ended_before_is_left_alone_and_errors_are_dropped() -> None:
    async def fail() -> None:
        raise ValueError("it failed")

    failed, waiting = asyncio.create_task(fail()), asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    await cancel_all([failed, waiting])
    await cancel_all([])
    assert (failed.done(), waiting.cancelled()) == (True, True)
