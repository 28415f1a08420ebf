"""How a loop waits for its next turn: for an event, or for its time, and nothing is left of that afterwards."""

from __future__ import annotations

import asyncio

from pillarbox.relay.polling import wait_for_event

LONG = 600.0
SHORT = 0.01


async def test_an_event_that_was_told_already_is_not_waited_for() -> None:
    event = asyncio.Event()
    event.set()
    await asyncio.wait_for(wait_for_event(event, LONG), timeout=60)


async def test_an_event_ends_the_waiting() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await asyncio.wait_for(wait_for_event(event, LONG), timeout=60)


async def test_its_time_ends_the_waiting() -> None:
    await asyncio.wait_for(wait_for_event(asyncio.Event(), SHORT), timeout=60)


async def test_a_wait_that_is_over_wakes_nobody_later() -> None:
    """The clock would set an event that was cleared since, and the loop would turn for nothing."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await wait_for_event(event, SHORT)
    event.clear()
    await asyncio.sleep(3 * SHORT)
    assert not event.is_set()


async def test_a_wait_that_is_given_up_wakes_nobody_later() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, SHORT))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(3 * SHORT)
    assert not event.is_set()
