"""The verdict on a run. Pure: the crash matrix and the chain collect the rows, and compare them here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

__all__ = ["NumberedRow", "Verdict", "find_overtaken"]


class Numbered(Protocol):
    """A row, an arrival or an effect of a numbered event."""

    @property
    def subject(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def number(self) -> int: ...


class NumberedRow(msgspec.Struct, frozen=True):
    """A committed row about a numbered event: the business row of its writer, or the effect of a handler."""

    subject: str
    key: str
    number: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run, and sentences about everything else that is wrong."""

    lost: int
    """Committed, and neither accepted, nor handled, nor kept in the state that the scenario expects."""
    ghosts: int
    """Arrived, handled or kept, and never committed."""
    out_of_order: int
    """First accepted or handled after a later one of the same key."""
    duplicates: int
    """Received again. Delivery is at least once, so this is no fault."""
    twice: int = 0
    """Effects beyond the first of a message."""
    faults: Sequence[str] = ()
    overtaken: Sequence[str] = ()
    """The messages out of order, where that is known."""

    @property
    def holds(self) -> bool:
        return not (self.lost or self.ghosts or self.twice or self.out_of_order or self.faults)


def find_overtaken(rows: Iterable[Numbered], *, ignore: Collection[str] = ()) -> Iterator[str]:
    """Yield each subject that first appears after a later one of its key: `k3/1 after 2`.

    `ignore` names subjects that an operator took out of their place.
    """
    seen = set(ignore)
    latest: dict[str, int] = {}
    for row in rows:
        if row.subject not in seen:
            seen.add(row.subject)
            if row.number < latest.get(row.key, 0):
                yield f"{row.subject} after {latest[row.key]}"
            latest[row.key] = max(row.number, latest.get(row.key, 0))
