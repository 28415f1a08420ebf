"""What somebody else had in hand when a link was made: it comes back before anything newer is handed out. Pure.

The server delivers what a dead consumer had only after `ack_wait`, and newer messages meanwhile. Whoever handled those
first would let them overtake the earlier ones of their key.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Absence", "Standing"]

_SLACK = 5.0
"""Seconds for a busy server."""


class Standing(NamedTuple):
    """How the server's durable consumer stands."""

    floor: int
    """All up to this number in the stream are acknowledged."""
    delivered: int
    """The highest number that was delivered."""
    out: int
    """How many messages were delivered and are not acknowledged, whoever has them."""
    waiting: int
    """How many requests for messages wait, whoever made them."""


class Absence:
    """Messages in the hands of others, who may be dead. Of those who are, the server takes them back in time."""

    def __init__(self, standing: Standing, *, now: float, ack_wait: float, expires: float) -> None:
        self._last = standing.delivered
        self._out = standing.out
        self._returned_at = now + ack_wait
        self._over_at = now + 1.5 * ack_wait + _SLACK
        """From here on it is taken that whoever has the rest is alive."""
        self._alone_until = now + expires + _SLACK
        """Until here a request may be of somebody dead; later ones are not."""

    def is_over(self, standing: Standing, *, in_hand: int, asked: int, now: float) -> bool:
        """Whether all of it is acknowledged, or all that is out is in our own hands, or others live and share the work.

        `asked` is how many of the requests that wait are ours.
        """
        if standing.floor >= self._last or standing.out <= in_hand:
            return True
        return now >= self._over_at or (now >= self._alone_until and standing.waiting > asked)

    def may_ask(self, *, newest: int, in_hand: int, limit: int, now: float) -> bool:
        """Whether to ask for more. What was taken back goes before all else, so newer ones say that it was not yet."""
        return (newest <= self._last or now >= self._returned_at) and in_hand < self._out + 2 * limit
