"""The answers of one `send`, as its calls come back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.aws.batches import Parcel

__all__ = ["DELIVERED", "Answers"]

DELIVERED: Final = Outcome(delivered=True)
_BEHIND: Final = Outcome(delivered=False, error="An earlier message of its key in the same send was not delivered.")


class Answers:
    """By place in the send. What nobody answered for stands behind an earlier message of its key."""

    def __init__(self, count: int) -> None:
        self._outcomes: list[Outcome] = [_BEHIND] * count
        self._away: dict[int, TransportUnavailable] = {}

    def give(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome

    def away(self, parcels: Iterable[Parcel], error: TransportUnavailable, *, lost: bool) -> None:
        """Nobody is there for these, or not for us. `lost`: the connection broke, which is nobody's answer."""
        for parcel in parcels:
            self._away[parcel.index] = error
            self._outcomes[parcel.index] = Outcome(delivered=False, error=str(error), lost=lost)

    def is_delivered(self, parcel: Parcel) -> bool:
        return self._outcomes[parcel.index].delivered

    def collected(self) -> Sequence[Outcome]:
        """In order; `TransportUnavailable` when nothing else is to be said of any that could be sent."""
        said = [outcome for outcome in self._outcomes if not outcome.rejected and outcome is not _BEHIND]
        if said and len(self._away) == len(said):
            first = next(iter(self._away.values()))
            raise TransportUnavailable(str(first), mid_send=any(one.mid_send for one in self._away.values())) from first
        return self._outcomes
