"""Finding and counting messages, and reading the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.message import Message, State
from pillarbox.protocols import Activity, Count, Entry, OpenClaim, Selection
from pillarbox.stores.counting import ROWS_LOOKED_UP, added, marked
from pillarbox.stores.sampling import sample_of
from pillarbox.stores.stepwise.parts import Parts, Transaction
from pillarbox.stores.stepwise.rows import stored_of, time_of

__all__ = ["Asking", "found"]

_MICROSECOND: Final = timedelta(microseconds=1)
_BY_ID: Final = itemgetter(0)
_PLACES: Final = {
    "find_pending": {State.PENDING},
    "find_sending": {State.SENDING},
    "find_held": {State.FAILED},
    "find_delivered": {State.DELIVERED},
    "find_ended": {State.FAILED, State.SKIPPED, State.DISCARDED},
}
"""Where messages of a state are. Each place is asked on its own, so that each answers through its own index."""
_TRIED: Final = {"find_pending": "find_tried"}
_COUNTS: Final = ("count_fresh", "count_due", "count_blocked")


class Asking(Parts):
    """The asking part of the store."""

    async def find(self, selection: Selection, *, limit: int, payloads: bool = True) -> Sequence[Message]:
        states = tuple(State) if selection.states is None else selection.states
        return await self._database.reading(
            lambda tx: found(tx, selection, states=states, limit=limit, payloads=payloads)
        )

    async def count(self, selection: Selection) -> int:
        asked = {"states": _values(tuple(State) if selection.states is None else selection.states)}

        def work(tx: Transaction) -> int:
            ((count,),) = tx.rows("count_selected", asked, selection=selection)
            return int(count)

        return await self._database.reading(work)

    async def journal(self, *, message_id: UUID | None = None, limit: int = 100) -> Sequence[Entry]:
        name = "journal_latest" if message_id is None else "journal_of"
        asked = {"message_id": str(message_id), "limit": limit}
        return [_entry(row) for row in await self._database.rows(name, asked)]

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        def work(tx: Transaction) -> Sequence[Count]:
            closed = min(limit, ROWS_LOOKED_UP)
            looks = [marked([_count(row) for row in tx.rows("count_closed", {"limit": closed})], limit=closed)]
            for (destination,) in tx.rows("places"):
                asked = {"destination": destination, "limit": limit}
                looks += [marked([_count(row) for row in tx.rows(name, asked)], limit=limit) for name in _COUNTS]
            return added(count for look in looks for count in look)

        return await self._database.reading(work)

    async def oldest_due(self) -> Mapping[str, datetime]:
        return {row[0]: time_of(row[1]) for row in await self._database.rows("oldest_due")}

    async def activity(self, *, window: timedelta, limit: int = 10_000) -> Activity:
        def work(tx: Transaction) -> Activity:
            asked = {"window": window // _MICROSECOND, "limit": limit}
            delivered, failed = tx.rows("activity", asked), tx.rows("attempts_failed", asked)
            return Activity(
                delivered=[sample_of(row[0], row[1], row[2] / 1e6, row[3] / 1e6, time_of(row[4])) for row in delivered],
                attempts_failed={row[0]: row[1] for row in failed},
                complete=len(delivered) < limit and sum(row[1] for row in failed) < limit,
            )

        return await self._database.reading(work)

    async def claims(self, *, older_than: timedelta, limit: int = 50) -> Sequence[OpenClaim]:
        asked = {"older_than": older_than // _MICROSECOND, "limit": limit}
        return [_open_claim(row) for row in await self._database.rows("claims_old", asked)]


def found(
    tx: Transaction,
    selection: Selection,
    *,
    states: Sequence[State],
    limit: int,
    payloads: bool = False,
    parked: bool = True,
) -> list[Message]:
    """The first of the selected messages that are in one of these states, by id."""
    asked = {"states": _values(states), "limit": limit, "payloads": payloads, "parked": parked}
    rows = [row for place in _places(selection, states) for row in tx.rows(place, asked, selection=selection)]
    return [stored_of(row) for row in sorted(rows, key=_BY_ID)[:limit]]


def _values(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]


def _places(selection: Selection, states: Sequence[State]) -> list[str]:
    places = [place for place, there in _PLACES.items() if not there.isdisjoint(states)]
    return [_TRIED.get(place, place) for place in places] if selection.min_attempts else places


def _open_claim(row: Sequence[Any]) -> OpenClaim:
    relay_id, claimed_at, message_ids, strikes = row
    return OpenClaim(
        relay_id=UUID(relay_id), claimed_at=time_of(claimed_at), message_ids=msgspec.json.decode(message_ids),
        strikes=strikes,
    )  # fmt: skip


def _entry(row: Sequence[Any]) -> Entry:
    message_id, destination, action, at, by, attempt, error, detail = row
    return Entry(
        message_id=None if message_id is None else UUID(message_id), destination=destination, action=action,
        at=time_of(at), by=by, attempt=attempt, error=error, detail=detail,
    )  # fmt: skip


def _count(row: Sequence[Any]) -> Count:
    destination, topic, state, due, count, oldest_at = row
    return Count(
        destination=destination, topic=topic, state=State(state), due=bool(due), count=count,
        oldest_at=time_of(oldest_at),
    )  # fmt: skip
