"""Polling: how long a loop waits, when it polls again, and when writers are asked for a wake-up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pillarbox.relay.polling import PollBackoff, WakeupArming, wait_for_event

# --- backoff and wake-ups ---


POLL = timedelta(seconds=1)


def test_it_polls_again_at_once_while_it_finds_something() -> None:
    backoff = PollBackoff(poll_interval=POLL)
    assert [backoff.next_wait(found=True) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_it_waits_twice_as_long_each_time_up_to_the_poll_interval() -> None:
    backoff = PollBackoff(poll_interval=POLL)
    waits = [backoff.next_wait(found=False) for _ in range(10)]
    assert waits == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])


@pytest.mark.parametrize("what", ["found", "woken"])
def test_it_polls_often_again_after_something_happened(what: str) -> None:
    backoff = PollBackoff(poll_interval=POLL)
    for _ in range(10):
        backoff.next_wait(found=False)
    if what == "found":
        backoff.next_wait(found=True)
    else:
        backoff.reset()
    assert backoff.next_wait(found=False) == 0.005


def test_it_is_idle_after_a_few_empty_rounds_and_busy_after_a_few_full_ones() -> None:
    backoff = PollBackoff(poll_interval=POLL)
    looks = [False] * 4 + [True] * 3
    assert [(backoff.next_wait(found), backoff.is_idle, backoff.is_busy)[1:] for found in looks] == [
        (False, False), (False, False), (True, False), (True, False), (False, False), (False, False), (False, True),
    ]  # fmt: skip


def test_a_poll_interval_below_the_shortest_wait_is_kept() -> None:
    backoff = PollBackoff(poll_interval=timedelta(milliseconds=1))
    assert [backoff.next_wait(found=False) for _ in range(3)] == [0.001, 0.001, 0.001]
    assert backoff.is_idle


class SwitchableWakeups:
    """Wake-ups that can be switched."""

    def __init__(self) -> None:
        self.is_listening = True


class IdleRelay:
    """A relay with one backoff, and the calls of its arming in order."""

    def __init__(self) -> None:
        self.backoff = PollBackoff(poll_interval=POLL)
        self.wakeups = SwitchableWakeups()
        self.calls: list[str] = []
        self.arming = WakeupArming([self.backoff], wakeups=self.wakeups, publish=self._publish, poll=self._poll)

    async def _publish(self) -> None:
        self.calls.append("asleep" if self.arming.is_armed else "awake")

    def _poll(self) -> None:
        self.calls.append("poll")

    async def poll(self, *, found: bool, rounds: int) -> None:
        for _ in range(rounds):
            self.backoff.next_wait(found=found)
        await self.arming.run_once()

    async def storm(self, *, found: bool) -> None:
        """More notifications in one interval than a wake-up is worth."""
        for _ in range(4):
            self.arming.on_notification()
        await self.poll(found=found, rounds=1)

    async def count_polls_until_armed(self) -> int:
        polls = 0
        while not self.arming.is_armed:
            await self.poll(found=False, rounds=5)
            polls += 1
        return polls


async def test_it_polls_once_more_after_it_is_armed() -> None:
    """A commit between the last poll and the arming notified nobody."""
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    assert relay.calls == ["asleep", "poll"]


async def test_it_publishes_only_changes() -> None:
    relay = IdleRelay()
    for _ in range(5):
        await relay.poll(found=False, rounds=3)
    assert relay.calls == ["asleep", "poll"]


async def test_one_message_does_not_end_the_sleep_and_steady_work_does() -> None:
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    await relay.poll(found=True, rounds=1)
    assert relay.arming.is_armed
    await relay.poll(found=True, rounds=3)
    assert relay.calls == ["asleep", "poll", "awake"]


async def test_a_full_window_is_no_idleness() -> None:
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    relay.backoff.is_full = True
    for _ in range(3):  # it is not armed again either
        await relay.poll(found=False, rounds=10)
        assert relay.calls == ["asleep", "poll", "awake"]


async def test_it_is_not_armed_while_it_does_not_listen() -> None:
    relay = IdleRelay()
    relay.wakeups.is_listening = False
    await relay.poll(found=False, rounds=10)
    assert relay.calls == []


async def test_it_is_disarmed_when_it_stops_listening() -> None:
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    relay.wakeups.is_listening = False
    await relay.poll(found=False, rounds=1)
    assert relay.calls == ["asleep", "poll", "awake"]


async def test_a_storm_of_notifications_ends_the_sleep_at_once() -> None:
    """Each one costs a writer, and the first has woken the relay already."""
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    await relay.storm(found=True)
    assert relay.calls == ["asleep", "poll", "awake"]


async def test_a_few_notifications_end_no_sleep() -> None:
    relay = IdleRelay()
    await relay.poll(found=False, rounds=10)
    for _ in range(20):
        relay.arming.on_notification()
        await relay.poll(found=False, rounds=1)
    assert relay.arming.is_armed


async def test_after_storms_that_brought_nothing_it_is_armed_less_and_less_often() -> None:
    """All that is written goes to a destination that is down: the writers must not pay for it."""
    relay = IdleRelay()
    rests = []
    for _ in range(10):
        rests.append(await relay.count_polls_until_armed())
        await relay.storm(found=False)
    assert rests == [1, 10, 20, 40, 80, 160, 320, 600, 600, 600]


async def test_a_storm_that_brought_something_is_followed_by_a_short_rest() -> None:
    relay = IdleRelay()
    for found in (False, False, False, True):
        await relay.count_polls_until_armed()
        await relay.storm(found=found)
    assert await relay.count_polls_until_armed() == 5


# --- waiting for an event ---


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
