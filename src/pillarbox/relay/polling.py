"""Polling: at once while there is work, less and less often while there is none, and when writers wake the relay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final, Protocol

from pillarbox.contracts.store import IdleLanes, QuietLanes, RelayStore, Wakeups
from pillarbox.errors import StoreError
from pillarbox.tasks import check_cancelled
from pillarbox.telemetry import Telemetry

__all__ = ["PollBackoff", "RestingReader", "SharedPoll", "WakeupArming", "wait_for_event"]

_SHORTEST: Final = 0.005
_IDLE: Final = 0.04
"""A backoff that waits this long is idle."""
_BUSY_ROUNDS: Final = 3
"""A backoff that found something in so many rounds in a row is busy."""
_INTERVAL: Final = 0.05
"""Seconds between two decisions about wake-ups."""
_STORM: Final = 4
"""So many notifications in one interval cost the writers more than a wake-up is worth."""
_SHORTEST_REST: Final = 5
_LONGEST_REST: Final = 600
"""Intervals after a storm before notifications are requested again."""


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set; a timer sets it after that time. Cheaper than a timeout, which cancels a task."""
    check_cancelled()
    if not event.is_set():
        alarm = asyncio.get_running_loop().call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            alarm.cancel()


class PollBackoff:
    """Adaptive polling: 5 ms after something was found, doubling up to the poll interval."""

    def __init__(self, *, poll_interval: timedelta) -> None:
        self.longest = poll_interval.total_seconds()
        self.shortest = min(_SHORTEST, self.longest)
        self._next = self.shortest
        self._found_in_a_row = 0
        self.finds = 0
        """How many rounds found something."""
        self.is_full = False
        """There is no room for more messages. That is not idleness: a wake-up would be of no use."""

    def next_wait(self, found: bool) -> float:
        """Return the seconds to wait after a round that found something, or nothing."""
        if found:
            self._next = self.shortest
            self._found_in_a_row += 1
            self.finds += 1
            return 0.0
        wait = self._next
        self._next = min(2 * wait, self.longest)
        self._found_in_a_row = 0
        return wait

    def reset(self) -> None:
        """Poll often again: there is something to find."""
        self._next = self.shortest

    @property
    def is_idle(self) -> bool:
        """Nothing was found for a while: a wake-up would be useful."""
        return self._next >= min(_IDLE, self.longest) and not self.is_full

    @property
    def is_busy(self) -> bool:
        """Every round finds something, or there is no room for it: wake-ups would only cost the writers."""
        return self._found_in_a_row >= _BUSY_ROUNDS or self.is_full


class RestingReader(Protocol):
    """Reader of one destination, as far as the shared poll uses it."""

    @property
    def is_resting(self) -> bool:
        """It makes no rounds of its own at present."""

    def get_idle_lanes(self) -> IdleLanes | None:
        """Return what to look at in place of its next round; None if it must make the round itself."""

    def note_quiet(self, lanes: IdleLanes, quiet: QuietLanes) -> None:
        """Note that these lanes have nothing to read."""

    def poll(self) -> None:
        """Make a round now."""


class SharedPoll:
    """Polls for all destinations of a relay that are idle, with one statement for all of them.

    A reader that found nothing for so long that it waits a whole poll interval rests. In place of each of its rounds
    the shared poll looks whether there is anything to read, and has it make the round if so. Readers with something
    else to do, such as a lane to read from its start, are sent on their round without a look.
    """

    def __init__(
        self, readers: Mapping[str, RestingReader], *, store: RelayStore, poll_interval: timedelta, telemetry: Telemetry
    ) -> None:
        self._readers = readers
        self._store = store
        self._interval = poll_interval.total_seconds()
        self._telemetry = telemetry
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        while True:
            self._hurry.clear()  # before the look: what is committed during it may not be seen
            await self.run_once()
            await wait_for_event(self._hurry, self._interval)

    def wake(self) -> None:
        """Look now: there may be something new."""
        self._hurry.set()

    async def run_once(self) -> None:
        """Look once, and poll the readers of destinations that have something to read."""
        idle: dict[str, IdleLanes] = {}
        for name, reader in self._readers.items():
            if not reader.is_resting:
                continue
            if (lanes := reader.get_idle_lanes()) is None:
                reader.poll()
            else:
                idle[name] = lanes
        if not idle:
            return
        quiet: Mapping[str, QuietLanes] = {}
        try:
            quiet = await self._store.peek(idle)
        except StoreError as error:
            self._telemetry.on_store_failed("reading", error)
        for name, lanes in idle.items():
            if name in quiet:
                self._readers[name].note_quiet(lanes, quiet[name])
            else:
                self._readers[name].poll()


class WakeupArming:
    """Has writers notify this relay while it is idle, and only then: a notification costs them.

    A storm of notifications disarms at once. If the storm brought nothing, as when all that is written goes to a
    destination that is down, each rest is longer than the one before. Polling goes on in any case.
    """

    def __init__(
        self,
        backoffs: Iterable[PollBackoff],
        *,
        wakeups: Wakeups,
        publish: Callable[[], Awaitable[None]],
        poll: Callable[[], None],
        pace: float = 1.0,
    ) -> None:
        self._interval = _INTERVAL * pace
        self._backoffs = list(backoffs)
        self._wakeups = wakeups
        self._publish = publish
        """Writes `is_armed` to the registry, where the writers' triggers see it."""
        self._poll = poll
        self._hurry = asyncio.Event()
        self._notifications = 0
        self._finds = 0
        self._rest = _SHORTEST_REST
        self._rest_left = 0
        self.is_armed = False

    async def run(self) -> None:
        while True:
            await self.run_once()
            await wait_for_event(self._hurry, self._interval)

    def on_notification(self) -> None:
        """Count a notification of a writer that committed."""
        self._notifications += 1
        if self._notifications >= _STORM and self.is_armed:
            self._hurry.set()

    async def run_once(self) -> None:
        """Arm or disarm. After arming, poll once more: what was committed just before notified nobody."""
        notifications, self._notifications = self._notifications, 0
        self._hurry.clear()
        self._rest_left = max(0, self._rest_left - 1)
        armed = self._wakeups.is_listening and (self._stays_armed(notifications) if self.is_armed else self._can_arm())
        if armed != self.is_armed:
            self.is_armed = armed
            await self._publish()
            if armed:
                self._finds = self._count_finds()
                self._poll()

    def _can_arm(self) -> bool:
        return not self._rest_left and all(backoff.is_idle for backoff in self._backoffs)

    def _stays_armed(self, notifications: int) -> bool:
        if notifications >= _STORM:
            useful = self._count_finds() > self._finds
            self._rest = _SHORTEST_REST if useful else min(2 * self._rest, _LONGEST_REST)
            self._rest_left = self._rest
            return False
        return not any(backoff.is_busy for backoff in self._backoffs)

    def _count_finds(self) -> int:
        return sum(backoff.finds for backoff in self._backoffs)
