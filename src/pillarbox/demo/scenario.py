"""The scenario of a run: which orders are placed and when processes are killed. Pure: the same seed gives the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from random import Random
from typing import Final

import msgspec

__all__ = [
    "POISON",
    "ConsumerDown",
    "ConsumerUp",
    "Fault",
    "FaultSchedule",
    "KillRelay",
    "PlannedOrder",
    "Progress",
    "Scenario",
    "plan_orders",
]

POISON: Final = -1
"""An amount that the consumer rejects."""

_CUSTOMERS: Final = 40
_ROLLED_BACK: Final = 0.08
_LARGEST: Final = 500


class PlannedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction of the order service. Its message is published in either case."""

    order_id: str
    customer: str
    amount: int
    commits: bool


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How many orders a run has, and its seed."""

    orders: int = 2_000
    """How many orders are committed."""
    seed: int = 0

    @property
    def pace(self) -> float:
        """Orders per second, if the store is fast enough."""
        return max(self.orders / 15, 75)

    @property
    def outage_after(self) -> int:
        """Orders that are committed before the consumer goes down."""
        return self.orders * 2 // 5

    @property
    def outage_seconds(self) -> float:
        return min(4.0, 1 + self.orders / 1_000)

    @property
    def kill_after(self) -> int:
        """Messages that are delivered between two kills: at least one, or relays that start slowly never deliver."""
        return max(1, self.orders // 30)

    @property
    def fewest_kills(self) -> int:
        """Relays that are killed in the middle of deliveries, if messages are left to deliver."""
        return max(3, min(12, self.orders // 100))

    @property
    def kills_until(self) -> int:
        """Deliveries after which no more relays are killed."""
        return self.orders // 2

    @property
    def patience(self) -> float:
        """Seconds after which the run ends, even if messages are still under way."""
        return 45 + self.orders / 50


def plan_orders(scenario: Scenario) -> Iterator[PlannedOrder]:
    """Yield the orders to place. One committed order is poison, early enough for others to follow it."""
    rng = Random(f"{scenario.seed} orders")  # noqa: S311 - a scenario, not a secret
    number = committed = 0
    while committed < scenario.orders:
        number += 1
        # The first is always rolled back, so that the shortest scenario has one.
        commits = number > 1 and rng.random() >= _ROLLED_BACK
        committed += commits
        is_poison = commits and committed == scenario.orders // 4 + 1
        yield PlannedOrder(
            order_id=f"order-{number:06}",
            customer=f"customer-{rng.randrange(_CUSTOMERS):02}",
            amount=POISON if is_poison else rng.randint(1, _LARGEST),
            commits=commits,
        )


_KILL_INTERVAL: Final = (0.5, 1.0)
_FEWEST_KILLS: Final = 3
"""Even if the messages run out."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at one time."""

    seconds: float
    orders: int
    """How many are committed in the end."""
    committed: int
    rolled_back: int
    delivered: int
    sending: int
    pending: int
    failed: int
    kills: int
    kills_while_delivering: int
    outages: int
    received: int
    """Different messages that the consumer has processed or refused."""
    consumer_is_up: bool
    shop_is_done: bool
    relays: Sequence[int]
    """The numbers of the relays that are registered and alive."""

    @property
    def is_delivered(self) -> bool:
        """Whether nothing is left to deliver, and nothing more will be published."""
        return self.shop_is_done and not self.sending and not self.pending

    @property
    def is_received(self) -> bool:
        """Whether everything is delivered, and nothing waits at a broker for the consumer."""
        return self.is_delivered and self.received >= self.committed - self.failed


class KillRelay(msgspec.Struct, frozen=True):
    """Kill this relay with SIGKILL, and start it again."""

    relay: int


class ConsumerDown(msgspec.Struct, frozen=True):
    """Kill the consumer with SIGKILL."""


class ConsumerUp(msgspec.Struct, frozen=True):
    """Start the consumer again."""


Fault = KillRelay | ConsumerDown | ConsumerUp


class _Outage(Enum):
    AHEAD = auto()
    NOW = auto()
    OVER = auto()


class FaultSchedule:
    """Decides, from the progress of a run, which faults are due.

    Relays are killed until all orders are placed, the consumer is back and most messages are delivered. A relay is
    killed only after it has registered, and only when enough was delivered since the last kill, or nothing can be
    delivered: killing programs that have not started to work would prove nothing.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = Random(f"{scenario.seed} kills")  # noqa: S311 - a scenario, not a secret
        self._kill_at = 0.0
        self._kill_after = 1
        """Deliveries that the next kill waits for."""
        self._outage = _Outage.AHEAD
        self._back_at = 0.0

    def due_faults(self, progress: Progress) -> Iterator[Fault]:
        """Yield the faults to inflict now."""
        yield from self._outage_faults(progress)
        if not self._faults_are_over(progress) and progress.relays and self._is_time_to_kill(progress):
            self._kill_at = progress.seconds + self._rng.uniform(*_KILL_INTERVAL)
            self._kill_after = progress.delivered + self._scenario.kill_after
            yield KillRelay(self._rng.choice(progress.relays))

    def is_over(self, progress: Progress) -> bool:
        """Return whether all faults are over, and everything has arrived."""
        return self._faults_are_over(progress) and progress.is_received

    def _is_time_to_kill(self, progress: Progress) -> bool:
        can_deliver = self._outage is not _Outage.NOW and not progress.is_delivered
        return progress.seconds >= self._kill_at and (progress.delivered >= self._kill_after or not can_deliver)

    def _faults_are_over(self, progress: Progress) -> bool:
        is_complete = progress.shop_is_done and self._outage is _Outage.OVER and progress.kills >= _FEWEST_KILLS
        enough = progress.kills_while_delivering >= self._scenario.fewest_kills
        return is_complete and (progress.is_delivered or (enough and progress.delivered >= self._scenario.kills_until))

    def _outage_faults(self, progress: Progress) -> Iterator[Fault]:
        if self._outage is _Outage.AHEAD and progress.committed >= self._scenario.outage_after:
            self._outage = _Outage.NOW
            self._back_at = progress.seconds + self._scenario.outage_seconds
            yield ConsumerDown()
        elif self._outage is _Outage.NOW and progress.seconds >= self._back_at:
            self._outage = _Outage.OVER
            yield ConsumerUp()
