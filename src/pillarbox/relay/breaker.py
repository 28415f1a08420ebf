"""Circuit breakers of a destination and of its addresses, the failures that open them, and the timer of its pings.

Pure: times are the caller's monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

__all__ = ["HELD_PER_SECOND", "AddressBreakers", "Breaker", "BreakerState", "FailureRow", "PingTimer"]

_FIRST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(seconds=30)
_OUTAGE_ROW: Final = 3
"""Different messages in a row that are answered with failures, from which on it is an outage.

One or two may be bad messages, or those of a tenant that is throttled.
"""
_MAX_ADDRESSES: Final = 10_000
"""Most addresses whose refusals are remembered. Forgetting one costs a few tries that spend nothing."""
_PROBE_TIME: Final = 2.0
"""Seconds after which an address whose probe is not answered may get another."""
HELD_PER_SECOND: Final = 1_000
_LONGEST_SPREAD: Final = 300.0
"""What waits for an address comes back at this rate, so that reading it again and again leaves room for the others."""
_UNUSED_AFTER: Final = 60.0
"""Seconds after which an address is unused: all that waited for it should have come back. Forgetting one that is still
awaited costs a few tries that spend nothing."""
_LOOK_INTERVAL: Final = 10.0
"""Seconds between two looks for unused addresses."""
_HOLD_STEP: Final = 0.05
"""Seconds of which a hold is a multiple: stores record in one statement what waits equally long for one reason."""


class BreakerState(StrEnum):
    """Closed: messages flow. Open: nothing is sent. Half open: one message is sent as a probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens on an outage, lets one probe through after a while, closes on the first acknowledgement.

    The wait doubles with each probe that fails, up to half a minute, and is spread by the caller's dice.
    """

    def __init__(self, *, first: timedelta = _FIRST, longest: timedelta = _LONGEST) -> None:
        self._first = first.total_seconds()
        self._longest = longest.total_seconds()
        self.state = BreakerState.CLOSED
        self.reason: str | None = None
        self.opened = 0
        """How often in a row it opened without an acknowledgement in between."""
        self.until = 0.0
        """Time of the next probe, while it is open."""
        self._since = 0.0

    def open(self, now: float, *, reason: str, dice: float, at_least: timedelta | None = None) -> float:
        """Open, because the destination is down; return for how many seconds."""
        if self.is_closed:
            self._since = now
        self.state = BreakerState.OPEN
        self.reason = reason
        wait = min(self._first * (1 << min(self.opened, 10)), self._longest)
        wait *= 0.5 + dice / 2
        if at_least is not None:
            wait = max(wait, at_least.total_seconds())
        self.opened += 1
        self.until = now + wait
        return wait

    def hurry(self, now: float) -> bool:
        """Let the next probe be sent now, because a person asked for it; return whether it is open."""
        if self.state is not BreakerState.OPEN:
            return False
        self.until = min(self.until, now)
        return True

    def half_open(self, now: float) -> bool:
        """Become half open if it is time for a probe; return whether a probe may be sent."""
        if self.state is BreakerState.OPEN and now >= self.until:
            self.state = BreakerState.HALF_OPEN
        return self.state is BreakerState.HALF_OPEN

    def close(self, *, is_proven: bool = True) -> bool:
        """Close, because the destination works; return whether it was not closed before.

        Without proof, after a ping alone, the next wait is as long as if it had stayed open.
        """
        was_closed = self.is_closed
        self.state = BreakerState.CLOSED
        self.reason = None
        if is_proven:
            self.opened = 0
        return not was_closed

    def wait(self, now: float) -> float:
        """Return the seconds until a probe may be sent."""
        return max(0.0, self.until - now) if self.state is BreakerState.OPEN else 0.0

    def open_for(self, now: float) -> float:
        """Return the seconds since it opened; 0 while it is closed."""
        return 0.0 if self.is_closed else now - self._since

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED


class FailureRow:
    """The different messages that a destination, or an address, has answered with failures since it last took one.

    An answer is not silence: one who answers is there, and the failure may be the message's own. So a message that
    fails again and again counts once, and the next one may show that the others get through. It takes three different
    ones in a row to tell that nothing gets through.
    """

    def __init__(self) -> None:
        self.message_ids: set[UUID] = set()
        """The first of them; more than make an outage are not needed."""

    def add(self, message_id: UUID) -> None:
        """Note that a message was answered with a failure."""
        if not self.is_outage:
            self.message_ids.add(message_id)

    def clear(self) -> None:
        """Note that a message was acknowledged."""
        self.message_ids.clear()

    @property
    def is_outage(self) -> bool:
        """Nothing gets through, whichever message it is."""
        return len(self.message_ids) >= _OUTAGE_ROW

    def __bool__(self) -> bool:
        return bool(self.message_ids)


class _Address:
    """Refusals of one address, and its breaker."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.row = FailureRow()
        self.held = 0
        """How many messages were held since its last probe."""
        self.probe_until = 0.0
        self.awaited_until = 0.0
        """Time until which a message that was held comes back."""


class AddressBreakers:
    """Breakers of the addresses of one destination. An address without refusals has none.

    An address is blocked when it takes nothing while the broker works. Its messages are held, and one at a time is sent
    as a probe. The first acknowledgement unblocks it.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}
        """Those that refused something since their last acknowledgement. Oldest first."""
        self._blocked = 0
        self._displaced: list[str] = []
        """Blocked ones that were forgotten for others, and not returned by `forget_unused` yet."""
        self._looked_at = self._watched_since = -math.inf

    @property
    def has_refusals(self) -> bool:
        """Some address refused its last message."""
        return bool(self._addresses)

    @property
    def has_blocked(self) -> bool:
        """Some address is blocked."""
        return self._blocked > 0

    def is_blocked(self, address: str) -> bool:
        """Return whether nothing but probes may be sent to an address."""
        known = self._addresses.get(address)
        return known is not None and not known.breaker.is_closed

    def refuse(
        self,
        address: str,
        now: float,
        *,
        message_id: UUID,
        reason: str,
        dice: float,
        is_missing: bool = False,
        at_least: timedelta | None = None,
    ) -> float | None:
        """Note that an address did not take a message; return for how many seconds it is blocked if that is news.

        It is blocked when it is missing, or has refused three different messages in a row.
        """
        known = self._addresses.get(address)
        if known is None:
            known = self._addresses[address] = _Address()
            if len(self._addresses) > _MAX_ADDRESSES:
                oldest = next(iter(self._addresses))
                if self._forget(oldest):
                    self._displaced.append(oldest)
        known.row.add(message_id)
        is_news = known.breaker.is_closed
        if is_news and not known.row.is_outage and not is_missing:
            return None
        if not is_news and now < known.breaker.until and not known.probe_until:
            return None  # it was sent before the address was blocked
        known.probe_until, known.held = 0.0, 0
        self._blocked += is_news
        seconds = known.breaker.open(now, reason=reason, dice=dice, at_least=at_least)
        return seconds if is_news else None

    def acknowledge(self, address: str) -> bool:
        """Note that an address took a message; return whether it was blocked."""
        return address in self._addresses and self._forget(address)

    def may_send(self, address: str, now: float) -> bool:
        """Return whether a message may be sent to an address now. To a blocked one a message goes as its probe."""
        known = self._addresses.get(address)
        if known is None or known.breaker.is_closed:
            return True
        if now < max(known.breaker.until, known.probe_until):
            return False
        known.probe_until = now + _PROBE_TIME
        return True

    def hurry(self, now: float) -> None:
        """Let each blocked address be probed now, by its next message."""
        for known in self._addresses.values():
            if known.breaker.hurry(now):
                known.probe_until = 0.0

    def hold(self, address: str, now: float, *, dice: float) -> tuple[timedelta, str]:
        """Count a message that waits for a blocked address; return for how long, and why."""
        known = self._addresses[address]
        known.held += 1
        wait = max(known.breaker.until, known.probe_until) - now
        spread = min(known.held / HELD_PER_SECOND, _LONGEST_SPREAD) + wait / 10
        seconds = math.ceil((max(wait, 0.0) + dice * spread) / _HOLD_STEP) * _HOLD_STEP
        known.awaited_until = max(known.awaited_until, now + seconds)
        return timedelta(seconds=seconds), known.breaker.reason or ""

    def forget_unused(self, now: float) -> Sequence[str]:
        """Forget the blocked addresses for which nothing comes any more; return them.

        What waited for one was discarded or failed, or another relay sends it: nothing would ever unblock it here.
        """
        if now - self._looked_at < _LOOK_INTERVAL or not (self._blocked or self._displaced):
            return ()
        if now - self._looked_at > _UNUSED_AFTER:
            self._watched_since = now  # nothing was read meanwhile, as in a pause
        self._looked_at = now
        unused = [
            address
            for address, known in self._addresses.items()
            if not known.breaker.is_closed and now > max(known.awaited_until, self._watched_since) + _UNUSED_AFTER
        ]
        for address in unused:
            self._forget(address)
        displaced, self._displaced = self._displaced, []
        return [*displaced, *unused]

    def describe(self) -> dict[str, str]:
        """Return the blocked addresses, each with the reason."""
        return {
            address: known.breaker.reason or ""
            for address, known in self._addresses.items()
            if not known.breaker.is_closed
        }

    def _forget(self, address: str) -> bool:
        was_blocked = not self._addresses.pop(address).breaker.is_closed
        self._blocked -= was_blocked
        return was_blocked


class PingTimer:
    """Due when nothing was acknowledged and no ping was sent for an interval."""

    def __init__(self, *, interval: timedelta) -> None:
        self._interval = interval.total_seconds()
        self._acknowledged = -1
        self._next = 0.0

    def is_due(self, now: float, *, acknowledged: int) -> bool:
        """Return whether to ping now. An acknowledgement since the last call starts a new interval, as a ping does."""
        if acknowledged == self._acknowledged and now < self._next:
            return False
        is_due = acknowledged == self._acknowledged
        self._acknowledged = acknowledged
        self._next = now + self._interval
        return is_due
