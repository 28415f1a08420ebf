"""Finding and counting messages, with the planner free to choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pillarbox.message import Message, State
from pillarbox.protocols import Activity, Count, Entry, OpenClaim, Selection
from pillarbox.stores.counting import ROWS_LOOKED_UP, TOPICS_LOOKED_UP, added, completed
from pillarbox.stores.postgres.parts import Parts
from pillarbox.stores.postgres.rows import stored_of
from pillarbox.stores.sampling import sample_of
from pillarbox.stores.selection import conditions

__all__ = ["Asking", "Parameters", "Place", "places_of"]


Place = tuple[str, State | None]
"""A statement, and for closed messages the status it looks for."""


def places_of(states: Sequence[State], *, tried: bool) -> list[Place]:
    """Where messages of these states are. Each place is asked on its own, and answers through its own index."""
    places: list[Place] = []
    if State.PENDING in states:
        places.append(("find_tried" if tried else "find_pending", None))
    if State.SENDING in states:
        places.append(("find_sending", None))
    if State.FAILED in states:
        places.append(("find_held", None))
    closed = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)
    return places + [("find_closed", state) for state in closed if state in states]


class Parameters:
    """Positional parameters that grow as conditions are written."""

    def __init__(self, values: Iterable[object] = ()) -> None:
        self.values = list(values)

    def value(self, value: object) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} = any({self.value(list(values))})"

    def contains(self, column: str, text: str) -> str:
        return f"position({self.value(text.lower())} in lower({column})) > 0"


class Asking(Parts):
    """The asking part of the store."""

    async def find(self, selection: Selection, *, limit: int, payloads: bool = True) -> Sequence[Message]:
        states = tuple(State) if selection.states is None else selection.states
        async with self._database.looking() as connection:
            rows = {
                row[0]: row
                for place in places_of(states, tried=bool(selection.min_attempts))
                for row in await self._found(connection, place, selection, limit=limit, payloads=payloads)
            }
        return [stored_of(rows[id]) for id in sorted(rows)[:limit]]

    async def _found(
        self, connection: Any, place: Place, selection: Selection, *, limit: int, payloads: bool
    ) -> Sequence[Any]:
        name, status = place
        parameters = Parameters((limit,) if status is None else (limit, status.value))
        where = conditions(selection, parameters)
        name = name if payloads else f"{name}_bare"
        rows: Sequence[Any] = await connection.fetch(self._sql.filled(name, where), *parameters.values)
        return rows

    async def count(self, selection: Selection) -> int:
        states = [state.value for state in (tuple(State) if selection.states is None else selection.states)]
        total = 0
        async with self._database.looking() as connection:
            for name in ("count_open", "count_closed"):
                parameters = Parameters((states,))
                where = conditions(selection, parameters)
                total += await connection.fetchval(self._sql.filled(name, where), *parameters.values)
        return total

    async def journal(self, *, message_id: UUID | None = None, limit: int = 100) -> Sequence[Entry]:
        async with self._database.asking() as connection:
            rows = await connection.fetch(self._sql["journal"], message_id, limit)
        return [
            Entry(message_id=row[0], destination=row[1], action=row[2], at=row[3], by=row[4], attempt=row[5],
                  error=row[6], detail=row[7])
            for row in rows
        ]  # fmt: skip

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        now = self._now()
        async with self._database.looking() as connection:
            sending = await connection.fetch(self._sql["count_sending"], limit, now)
            fresh = await connection.fetch(self._sql["count_fresh"], limit, TOPICS_LOOKED_UP)
            timed = await connection.fetch(self._sql["count_timed"], limit, TOPICS_LOOKED_UP, now)
            blocked = await connection.fetch(self._sql["count_blocked"], min(limit, ROWS_LOOKED_UP))
            ended = await connection.fetch(self._sql["count_ended"], min(limit, ROWS_LOOKED_UP))
        counts = [_count(row) for row in (*sending, *blocked, *ended)]
        for place, rows in (("fresh", fresh), ("timed", timed)):
            waiting = [_waiting(row) for row in rows]
            told = [count for count in waiting if count.topic is not None]
            totals = [count for count in waiting if count.topic is None]
            in_hand = [_count(row) for row in sending if row[7] == place]
            counts += completed(totals, told, sending=in_hand)
        return added(counts)

    async def oldest_due(self) -> Mapping[str, datetime]:
        async with self._database.asking() as connection:
            rows = await connection.fetch(self._sql["oldest_due"], self._now())
        return {row[0]: row[1] for row in rows}

    async def activity(self, *, window: timedelta, limit: int = 10_000) -> Activity:
        async with self._database.asking() as connection:
            since = (self._now() or await connection.fetchval("select statement_timestamp()")) - window
            delivered = await connection.fetch(self._sql["activity"], since, limit)
            failed = await connection.fetch(self._sql["attempts_failed"], since, limit)
        return Activity(
            delivered=[sample_of(*row) for row in delivered],
            attempts_failed={row[0]: row[1] for row in failed},
            complete=len(delivered) < limit and sum(row[1] for row in failed) < limit,
        )

    async def claims(self, *, older_than: timedelta, limit: int = 50) -> Sequence[OpenClaim]:
        async with self._database.asking() as connection:
            before = (self._now() or await connection.fetchval("select statement_timestamp()")) - older_than
            rows = await connection.fetch(self._sql["claims_old"], before, limit)
        return [OpenClaim(relay_id=row[0], claimed_at=row[1], message_ids=row[2], strikes=row[3]) for row in rows]


def _count(row: Any) -> Count:
    destination, topic, state, due, count, oldest_at, more = row[:7]
    return Count(
        destination=destination, topic=topic, state=State(state), due=due, count=count, oldest_at=oldest_at, more=more
    )


def _waiting(row: Any) -> Count:
    destination, topic, *rest = row
    return _count((destination, topic, State.PENDING, *rest))
