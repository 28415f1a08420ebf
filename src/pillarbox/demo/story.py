"""What happens in the demo, as far as it is known before it starts. Pure: the same seed tells the same story."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

__all__ = ["POISON", "Attempt", "Story", "attempts"]

POISON: Final = -1
"""An amount that no consumer takes."""

_CUSTOMERS: Final = 40
_ROLLED_BACK: Final = 0.08
_LARGEST: Final = 500


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction of the order service. Its message is published in either case."""

    order_id: str
    customer: str
    amount: int
    commits: bool


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """How long the story is, and which one."""

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
        """Seconds after which the story is over, whatever is still on its way."""
        return 45 + self.orders / 50


def attempts(story: Story) -> Iterator[Attempt]:
    """What the order service does. One committed order is poison, early enough for others to follow it."""
    dice = Random(f"{story.seed} orders")  # noqa: S311 - a story, not a secret
    number = committed = 0
    while committed < story.orders:
        number += 1
        # The first is always rolled back, so that the shortest story has one.
        commits = number > 1 and dice.random() >= _ROLLED_BACK
        committed += commits
        is_poison = commits and committed == story.orders // 4 + 1
        yield Attempt(
            order_id=f"order-{number:06}",
            customer=f"customer-{dice.randrange(_CUSTOMERS):02}",
            amount=POISON if is_poison else dice.randint(1, _LARGEST),
            commits=commits,
        )
