"""Which messages go together in one call, and which must wait for others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

__all__ = ["Parcel", "calls", "rounds"]

_ENTRIES = 10
"""What one call takes at most."""


class Parcel(msgspec.Struct, frozen=True):
    """A message that is ready to go."""

    index: int
    """Its place in the `send`."""
    place: str
    """The queue or topic."""
    key: str | None
    entry: dict[str, object]
    size: int


def rounds(parcels: Sequence[Parcel]) -> Iterator[Sequence[Parcel]]:
    """Cut where a key comes again at its place: calls of a round go at once, rounds one after the other."""
    begun, seen = 0, set[tuple[str, str]]()
    for number, parcel in enumerate(parcels):
        if parcel.key is None:
            continue
        if (parcel.place, parcel.key) in seen:
            yield parcels[begun:number]
            begun, seen = number, set()
        seen.add((parcel.place, parcel.key))
    if begun < len(parcels):
        yield parcels[begun:]


def calls(parcels: Sequence[Parcel], *, most: int) -> Iterator[Sequence[Parcel]]:
    """Up to ten of one place, of no more than so many bytes together."""
    by_place: dict[str, list[Parcel]] = {}
    sizes: dict[str, int] = {}
    for parcel in parcels:
        call = by_place.setdefault(parcel.place, [])
        size = sizes.get(parcel.place, 0) + parcel.size
        if call and (len(call) == _ENTRIES or size > most):
            yield call
            by_place[parcel.place], size = [], parcel.size
        by_place[parcel.place].append(parcel)
        sizes[parcel.place] = size
    yield from by_place.values()
