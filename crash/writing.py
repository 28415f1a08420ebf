"""How parcels are written: as any application writes, row and message in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crash.backends import Place
from crash.parcels import UNROUTED, Parcel, outbox
from crash.steps import Stage

__all__ = ["RolledBack", "roll_back", "write"]


class RolledBack(Exception):
    """Thrown in the middle of a transaction, after publishing."""


def _nothing(_: Stage) -> None:
    pass


def write(place: Place, parcels: Sequence[Parcel], *, reached: Callable[[Stage], None] = _nothing) -> None:
    """One transaction. Tells how far it has come."""
    with place.transaction() as handle:
        _write(place, handle, parcels, reached=reached)
        reached(Stage.UNCOMMITTED)
    reached(Stage.ANSWERED)


def roll_back(place: Place, parcels: Sequence[Parcel]) -> None:
    """The same, and then it thinks better of it."""
    try:
        with place.transaction() as handle:
            _write(place, handle, parcels, reached=_nothing)
            raise RolledBack
    except RolledBack:
        pass


def _write(place: Place, handle: object, parcels: Sequence[Parcel], *, reached: Callable[[Stage], None]) -> None:
    for parcel in parcels:
        place.book(handle, parcel)
    reached(Stage.HALFWAY)
    shop = outbox(place.names)
    for routed, topic in ((True, None), (False, UNROUTED)):
        if chosen := [parcel for parcel in parcels if parcel.routed is routed]:
            shop.publish(handle, chosen, topic=topic)  # type: ignore[call-overload]
