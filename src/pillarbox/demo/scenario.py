"""The scenario of a run: which orders are placed and when processes are killed. Pure: a seed gives the same again."""

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
"""An amount that no consumer takes."""

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
    """How long the scenario is, and which one."""

    orders: int = 2_000
    """To be committed."""
    seed: int = 0

    @property
    def pace(self) -> float:
        """Orders a second, if the store can take them."""
        return max(self.orders / 15, 100)

    @property
    def outage_after(self) -> int:
        """Orders that are committed before the consumer goes down."""
        return self.orders * 2 // 5

    @property
    def outage_seconds(self) -> float:
        return min(4.0, 1 + self.orders / 1_000)

    @property
    def kill_after(self) -> int:
        """Messages that are delivered between two kills."""
        return self.orders // 30

    @property
    def kills_until(self) -> int:
        """Messages after whose delivery relays are left in peace."""
        return self.orders // 2

    @property
    def patience(self) -> float:
        """Seconds after which the scenario is over, whatever is still on its way."""
        return 45 + self.orders / 50


def plan_orders(scenario: Scenario) -> Iterator[PlannedOrder]:
    """What the order service does. One committed order is poison, early enough for others to follow it."""
    dice = Random(f"{scenario.seed} orders")  # noqa: S311 - a scenario, not a secret
    number = committed = 0
    while committed < scenario.orders:
        number += 1
        # The first is always rolled back, so that the shortest scenario has one.
        commits = number > 1 and dice.random() >= _ROLLED_BACK
        committed += commits
        is_poison = commits and committed == scenario.orders // 4 + 1
        yield PlannedOrder(
            order_id=f"order-{number:06}",
            customer=f"customer-{dice.randrange(_CUSTOMERS):02}",
            amount=POISON if is_poison else dice.randint(1, _LARGEST),
            commits=commits,
        )


_EVERY: Final = (0.5, 1.0)
_FEWEST_KILLS: Final = 3


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the scenario is, at one look."""

    seconds: float
    orders: int
    """To be committed in the end."""
    committed: int
    rolled_back: int
    delivered: int
    sending: int
    pending: int
    failed: int
    kills: int
    outages: int
    received: int
    """Different messages that the consumer has processed or refused."""
    consumer_is_up: bool
    shop_is_done: bool
    relays: Sequence[int]
    """Those that are registered and alive, by their number."""

    @property
    def is_delivered(self) -> bool:
        """Nothing is left to deliver, and nothing more will come."""
        return self.shop_is_done and not self.sending and not self.pending

    @property
    def is_received(self) -> bool:
        """And nothing waits at a broker for the consumer."""
        return self.is_delivered and self.received >= self.committed - self.failed


class KillRelay(msgspec.Struct, frozen=True):
    """SIGKILL for this one; another is started in its place."""

    relay: int


class ConsumerDown(msgspec.Struct, frozen=True):
    """SIGKILL for the consumer."""


class ConsumerUp(msgspec.Struct, frozen=True):
    """The consumer is started again."""


Fault = KillRelay | ConsumerDown | ConsumerUp


class _Outage(Enum):
    AHEAD = auto()
    NOW = auto()
    OVER = auto()


class FaultSchedule:
    """Asked at every look what is to be done now.

    Relays are killed until all orders are placed, the consumer is back and most is delivered; then they are left in
    peace. Only a relay that has registered is killed, and only when enough was delivered since the last one died, or
    nothing can be: killing programs that have not begun would prove nothing.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._dice = Random(f"{scenario.seed} kills")  # noqa: S311 - a scenario, not a secret
        self._kill_at = 0.0
        self._kill_after = 1
        """Deliveries that the next kill waits for."""
        self._outage = _Outage.AHEAD
        self._back_at = 0.0

    def due_faults(self, progress: Progress) -> Iterator[Fault]:
        """What to do now."""
        yield from self._outage_cues(progress)
        if not self._is_calm(progress) and progress.relays and self._is_time_to_kill(progress):
            self._kill_at = progress.seconds + self._dice.uniform(*_EVERY)
            self._kill_after = progress.delivered + self._scenario.kill_after
            yield KillRelay(self._dice.choice(progress.relays))

    def is_over(self, progress: Progress) -> bool:
        """Everything that was to happen has happened, and everything has arrived."""
        return self._is_calm(progress) and progress.is_received

    def _is_time_to_kill(self, progress: Progress) -> bool:
        can_deliver = self._outage is not _Outage.NOW and not progress.is_delivered
        return progress.seconds >= self._kill_at and (progress.delivered >= self._kill_after or not can_deliver)

    def _is_calm(self, progress: Progress) -> bool:
        is_complete = progress.shop_is_done and self._outage is _Outage.OVER and progress.kills >= _FEWEST_KILLS
        return is_complete and (progress.delivered >= self._scenario.kills_until or progress.is_delivered)

    def _outage_cues(self, progress: Progress) -> Iterator[Fault]:
        if self._outage is _Outage.AHEAD and progress.committed >= self._scenario.outage_after:
            self._outage = _Outage.NOW
            self._back_at = progress.seconds + self._scenario.outage_seconds
            yield ConsumerDown()
        elif self._outage is _Outage.NOW and progress.seconds >= self._back_at:
            self._outage = _Outage.OVER
            yield ConsumerUp()
