"""Answers for people and monitors: messages, counts, activity, the journal. Nothing here is on the relay's path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import (
    BLOCKED_WALKED,
    FRESH_WALKED,
    GROUPS_WALKED,
    JOURNAL_LINES,
    SOURCES_WALKED,
    BlockedKeyCount,
    Count,
    DestinationRequest,
    FailureGroup,
    InboxActivity,
    InboxCount,
    InboxFailure,
    InboxRecord,
    InboxSelection,
    JournalEntry,
    LaneBacklog,
    OpenClaim,
    Order,
    Pause,
    Phase,
    PhaseCount,
    Rollup,
    Selection,
    StoreFacts,
    TableStatus,
    Tries,
)
from pillarbox.durations import LONGEST
from pillarbox.message import Message, State, Waits
from pillarbox.stores.postgres.connection import Database, Now
from pillarbox.stores.postgres.driver import Connection
from pillarbox.stores.postgres.history import FIRST_ID, Window, read_window
from pillarbox.stores.postgres.rows import message_from_stored_row
from pillarbox.stores.rules import build_inbox_counts, list_states
from pillarbox.stores.sql import Statements, build_conditions, sort_rows
from pillarbox.stores.statistics import (
    FAILURES_LOOKED_UP,
    TOPICS_LOOKED_UP,
    FailureCount,
    RecordedTries,
    attach_tries,
    build_rollup,
    build_tries,
    check_step,
    choose_largest,
    complete_counts,
    merge_counts,
    merge_failures,
)
from pillarbox.stores.unreadable import NO_TIME

__all__ = ["Parameters", "PostgresQueries", "inbox_parameters"]


_WAITING: Final = {
    Phase.LATER: [Waits.DEFERRED.value, Waits.RETRY.value],
    Phase.RETRY: [Waits.RETRY.value],
    Phase.PARKED: [Waits.PARKED.value],
}
"""Phases that are found by the index of what waits, and what waits so."""


class PostgresQueries:
    """Reads everything, changes nothing. The planner chooses freely here."""

    def __init__(self, database: Database, sql: Statements, *, now: Now) -> None:
        self._database = database
        self._sql = sql
        self._now = now

    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        states = list_states(selection)
        # After a restore that took the sequence back, an open and a closed message may have the same id.
        found: dict[tuple[int, UUID], Any] = {}
        # Whether a message is pending or sending depends on the time: a relay may be gone. All statements have the time
        # of the transaction, or a message whose relay expires between two of them would be in neither.
        now = self._now()
        async with self._database.snapshot() as connection:
            for statement, status in _choose_statements(states, selection):
                if status is State.DELIVERED and order is Order.ID and _is_walked(selection):
                    rows = await self._find_delivered(connection, statement, selection, limit=limit, payloads=payloads)
                else:
                    parameters = Parameters((limit, *_list_values(statement, status, selection, now)))
                    where = build_conditions(selection, parameters)
                    sql = self._sql.fill(statement, where, order=order, payloads=payloads)
                    rows = await connection.fetch(sql, *parameters.values)
                found |= {(row[0], row[1]): row for row in rows}
        return [message_from_stored_row(row) for row in sort_rows(found.values(), order)[:limit]]

    async def _find_delivered(
        self, connection: Connection, statement: str, selection: Selection, *, limit: int, payloads: bool
    ) -> Sequence[Any]:
        """Find delivered messages of before a time, window by window: no index is sorted by it."""
        rows: list[Any] = []
        after = selection.after or FIRST_ID
        while window := await read_window(connection, self._sql, after=after, before=selection.changed_before):
            parameters = Parameters((limit - len(rows), State.DELIVERED.value))
            where = _bound(window, build_conditions(selection, parameters), parameters)
            sql = self._sql.fill(statement, where, payloads=payloads)
            rows += await connection.fetch(sql, *parameters.values)
            if window.next_after is None or len(rows) >= limit:
                break
            after = window.next_after
        return rows

    async def _count_delivered(self, connection: Connection, selection: Selection) -> int:
        """Count delivered messages of before a time, window by window."""
        total, after = 0, selection.after or FIRST_ID
        while window := await read_window(connection, self._sql, after=after, before=selection.changed_before):
            parameters = Parameters(([State.DELIVERED.value],))
            where = _bound(window, build_conditions(selection, parameters), parameters)
            total += await connection.fetchval(self._sql.fill("count_closed", where), *parameters.values)
            if window.next_after is None:
                break
            after = window.next_after
        return total

    async def count(self, selection: Selection, *, limit: int | None = None) -> int:
        if limit is not None:
            return await self._count_to(selection, limit)
        states = [state.value for state in list_states(selection)]
        total = 0
        async with self._database.snapshot() as connection:
            if State.DELIVERED.value in states and _is_walked(selection):
                states.remove(State.DELIVERED.value)
                total += await self._count_delivered(connection, selection)
            # What is in a phase is open: history does not know it.
            for statement in ("count_open", "count_closed")[: 2 if selection.phase is None else 1]:
                parameters = Parameters((states, self._now()) if statement == "count_open" else (states,))
                where = build_conditions(selection, parameters)
                total += await connection.fetchval(self._sql.fill(statement, where), *parameters.values)
        return total

    async def _count_to(self, selection: Selection, limit: int) -> int:
        """Count by the statements that find, so that each state is counted by its index."""
        total, now = 0, self._now()
        async with self._database.snapshot() as connection:
            for statement, status in _choose_statements(list_states(selection), selection):
                parameters = Parameters((limit - total, *_list_values(statement, status, selection, now)))
                where = build_conditions(selection, parameters)
                sql = self._sql.fill_count(statement, where)
                total += await connection.fetchval(sql, *parameters.values)
                if total >= limit:
                    break
        return total

    async def journal(
        self,
        *,
        message_id: UUID | None,
        destination: str | None,
        by: str | None,
        actions: Sequence[str] | None,
        messages: bool,
        before: int | None,
        limit: int,
    ) -> Sequence[JournalEntry]:
        if message_id is not None and not messages:
            return []
        wanted = (destination, by, None if actions is None else [str(action) for action in actions], before)
        is_filtered = message_id is None and any(one is not None for one in (destination, by, actions))
        async with self._database.unpinned() as connection:
            if not messages:
                rows = await connection.fetch(self._sql["journal_general"], limit, *wanted)
            else:
                end = None
                if is_filtered:
                    end = await connection.fetchval(self._sql["journal_end"], before, JOURNAL_LINES)
                rows = await connection.fetch(self._sql["journal"], message_id, limit, *wanted, end)
        return [
            JournalEntry(
                message_id=row[0], destination=row[1], action=row[2], at=row[3] or NO_TIME, by=row[4], attempt=row[5],
                error=row[6], detail=row[7], id=row[8], reason=row[9], selection=row[10],
            )
            for row in rows
        ]  # fmt: skip

    async def failure_groups(self, destination: str | None, *, limit: int, counted_to: int) -> Sequence[FailureGroup]:
        async with self._database.snapshot() as connection:
            counts = [
                FailureCount(row[0], row[1], row[2], held=held)
                for name, held in (("failed_groups", False), ("held_groups", True))
                for row in await connection.fetch(self._sql[name], counted_to, GROUPS_WALKED)
                if destination in (None, row[0])
            ]
            parts: list[FailureCount] = []
            largest = [part for group in choose_largest(counts, limit=limit) for part in group]
            for name, held in (("failed_details", False), ("held_details", True)):
                parts += await self._describe_failures(connection, name, [one for one in largest if one.held is held])
            shared = {group[0].group: await self._count_keys(connection, group[0]) for group in
                      choose_largest(counts, limit=limit) if len(group) > 1}  # fmt: skip
            ids = [part.example_id for part in parts]
            found: list[Message] = []
            for name, second in (("find_held", ()), ("find_closed", (State.FAILED.value,))):
                parameters = Parameters((2 * len(ids), *second))
                where = build_conditions(Selection(ids=[id_ for id_ in ids if id_ is not None]), parameters)
                rows = await connection.fetch(self._sql.fill(name, where, payloads=False), *parameters.values)
                found += [message_from_stored_row(row) for row in rows]
            groups = merge_failures(parts, found, counted_to=counted_to, keys=shared)
            return attach_tries(groups, await self._read_tries(connection, [group.example for group in groups]))

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        async with self._database.unpinned() as connection:
            return build_tries(messages, await self._read_tries(connection, messages))

    async def _read_tries(
        self, connection: Connection, messages: Sequence[Message]
    ) -> Mapping[tuple[UUID, str], RecordedTries]:
        """Read the failed tries of messages from the journal."""
        names = [message.message_id for message in messages]
        rows = await connection.fetch(self._sql["tries"], names, None, self._now()) if names else []
        return {(row[0], row[1]): RecordedTries(*row[2:6]) for row in rows}

    async def _count_keys(self, connection: Connection, one: FailureCount) -> int:
        """Count the keys of a group whose messages are in both tables: a key may be in each."""
        keys: set[str] = set()
        for name in ("failed_keys", "held_keys"):
            parameters = Parameters((one.destination, FAILURES_LOOKED_UP))
            where = (
                "fingerprint is null" if one.fingerprint is None else parameters.equals("fingerprint", one.fingerprint)
            )
            keys |= {row[0] for row in await connection.fetch(self._sql.fill(name, where), *parameters.values)}
        return len(keys)

    async def _describe_failures(
        self, connection: Connection, name: str, counts: Sequence[FailureCount]
    ) -> list[FailureCount]:
        """Return counts with the times, the keys and the latest message of each group."""
        destinations, prints = [one.destination for one in counts], [one.fingerprint for one in counts]
        rows = await connection.fetch(self._sql[name], destinations, prints, FAILURES_LOOKED_UP)
        return [
            replace(counts[number - 1], first_at=first_at, last_at=last_at, keys=keys, example_id=id_)
            for number, first_at, last_at, keys, id_ in rows
        ]

    async def count_blocked(self, destination: str, *, limit: int, counted_to: int) -> Sequence[BlockedKeyCount]:
        async with self._database.snapshot() as connection:
            rows = await connection.fetch(self._sql["blocking"], destination, BLOCKED_WALKED)
            keys = list(dict.fromkeys((row[0], row[1]) for row in rows))[:limit]
            partitions, names = [partition for partition, _ in keys], [key for _, key in keys]
            rows = await connection.fetch(self._sql["blocked_heads"], destination, partitions, names, counted_to + 1)
            heads = {row[1]: row for row in rows if row[2] != Waits.PARKED}
            found: list[Message] = []
            now = self._now()
            for name, second in (("find_held", ()), ("find_pending", (now,)), ("find_sending", (now,))):
                parameters = Parameters((limit, *second))
                where = build_conditions(Selection(ids=list(heads)), parameters)
                rows = await connection.fetch(self._sql.fill(name, where, payloads=False), *parameters.values)
                found += [message_from_stored_row(row) for row in rows]
        return [
            BlockedKeyCount(
                destination=destination, partition=keys[heads[head.id][0] - 1][0], key=keys[heads[head.id][0] - 1][1],
                head=head, waiting=heads[head.id][4] - 1, more=heads[head.id][4] > counted_to,
            )
            for head in sorted(found, key=lambda one: (heads[one.id][3] or NO_TIME, one.id))
        ]  # fmt: skip

    async def inbox_records(self, message_ids: Sequence[str]) -> Sequence[InboxRecord]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["inbox_records"], list(message_ids), SOURCES_WALKED)
        return [
            InboxRecord(
                consumer=row[0], source=row[1], message_id=row[2], status=row[3], at=row[4] or NO_TIME,
                attempts=row[5], error=row[6], duplicates=row[7],
            )
            for row in rows
        ]  # fmt: skip

    async def inbox_activity(self, *, window: timedelta, limit: int) -> Sequence[InboxActivity]:
        async with self._database.unpinned() as connection:
            since = (self._now() or await connection.fetchval("select statement_timestamp()")) - window
            rows = await connection.fetch(self._sql["inbox_activity"], limit, since, SOURCES_WALKED)
        return [
            InboxActivity(
                consumer=name, handled=handled, duplicates=duplicates, last_at=last_at,
                since=since if looked < limit else first_at,
            )
            for name, handled, duplicates, last_at, looked, first_at in rows
        ]  # fmt: skip

    async def find_key(self, destination: str, *, partition: int, key: str, after: int, limit: int) -> Sequence[int]:
        values = (destination, partition, key, after, limit, FRESH_WALKED)
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["key_ids"], *values)
        return [row[0] for row in rows]

    async def count_phases(self, *, limit: int) -> Sequence[PhaseCount]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["count_phases"], limit, self._now())
        return [
            PhaseCount(destination=name, phase=Phase(phase), count=count, more=count >= limit)
            for name, phase, count in rows
            if count
        ]

    async def lane_backlogs(self, destination: str, *, limit: int) -> Sequence[LaneBacklog]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["lane_backlogs"], destination, limit, self._now())
        return [
            LaneBacklog(partition=lane, due=min(due, limit), more=more or due >= limit, oldest_at=oldest_at)
            for lane, due, more, oldest_at in rows
        ]

    async def facts(self) -> StoreFacts:
        async with self._database.unpinned() as connection:
            version, server, oldest, hidden = await connection.fetchrow(self._sql["facts"])
        return StoreFacts(
            schema_version=version, server=f"PostgreSQL {server}", oldest_transaction=oldest, hidden_transactions=hidden
        )

    async def tables(self, names: Mapping[str, str]) -> Sequence[TableStatus]:
        """Return the sizes of tables, given by the names that they are shown under and their qualified names."""
        shown = {qualified: name for name, qualified in names.items()}
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["tables"], list(shown))
        found = [
            TableStatus(name=shown[name], rows=count, bytes=size, dead_rows=dead) for name, count, size, dead in rows
        ]
        return sorted(found, key=lambda table: table.name)

    async def requests(self) -> Sequence[DestinationRequest]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["requests"])
        found: dict[str, DestinationRequest] = {}
        for name, by, at, reason, probed_at in rows:
            one = found.get(name) or DestinationRequest(destination=name)
            pause = None if by is None else Pause(destination=name, by=by, at=at or NO_TIME, reason=reason)
            found[name] = replace(one, probe_at=probed_at) if pause is None else replace(one, pause=pause)
        return [found[name] for name in sorted(found)]

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["inbox_failures"], *inbox_parameters(selection), limit)
        return [
            InboxFailure(
                consumer=row[0], source=row[1], message_id=row[2], attempts=row[3], error=row[4],
                failed_at=row[5] or NO_TIME, content=row[6],
            )
            for row in rows
        ]  # fmt: skip

    async def inbox_counts(self, *, limit: int) -> Sequence[InboxCount]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["inbox_counts"], limit)
        return build_inbox_counts([(consumer, count, at or NO_TIME) for consumer, count, at in rows], limit=limit)

    async def pauses(self) -> Sequence[Pause]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["pauses"])
        return [Pause(destination=name, by=by, at=at or NO_TIME, reason=reason) for name, by, at, reason in rows]

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        """Count by the indexes alone; topics, which no index has, are looked up for the first messages only."""
        now = self._now()
        async with self._database.snapshot() as connection:
            sending = await connection.fetch(self._sql["count_sending"], limit, now)
            fresh = await connection.fetch(self._sql["count_fresh"], limit, TOPICS_LOOKED_UP, now)
            waiting = await connection.fetch(self._sql["count_waiting"], limit, TOPICS_LOOKED_UP, now)
            ended = await connection.fetch(self._sql["count_ended"], limit, TOPICS_LOOKED_UP)
        counts = [_count_from_row(row) for row in sending]
        in_hand = [_count_from_row(row) for row in sending if row[7]]
        counts += complete_counts([_pending_from_row(row) for row in fresh], sending=in_hand)
        in_hand = [_count_from_row(row) for row in sending if not row[7]]
        counts += complete_counts([_count_from_row(row) for row in waiting], sending=in_hand)
        counts += complete_counts([_count_from_row(row) for row in ended], sending=[])
        return merge_counts(counts)

    async def oldest_due(self) -> Mapping[str, datetime]:
        async with self._database.unpinned() as connection:
            rows = await connection.fetch(self._sql["oldest_due"], self._now())
        return {row[0]: row[1] for row in rows if row[1] is not None}

    async def rollups(self, *, window: timedelta, step: timedelta) -> Sequence[Rollup]:
        async with self._database.unpinned() as connection:
            since = (self._now() or await connection.fetchval("select statement_timestamp()")) - window
            rows = await connection.fetch(self._sql["rollups"], since, check_step(step))
        return [build_rollup(row[0], row[1] or NO_TIME, row[2:]) for row in rows]

    async def claims(
        self, *, older_than: timedelta, limit: int = 50, relay_id: UUID | None = None
    ) -> Sequence[OpenClaim]:
        async with self._database.unpinned() as connection:
            now = self._now() or await connection.fetchval("select statement_timestamp()")
            before = now - min(older_than, LONGEST)  # the calendar has no time that long ago
            rows = await connection.fetch(self._sql["claims_old"], before, limit, relay_id)
        return [
            OpenClaim(relay_id=row[0], claimed_at=row[1] or NO_TIME, message_ids=row[2], strikes=row[3]) for row in rows
        ]


class Parameters:
    """`Binder` of PostgreSQL: positional parameters that grow as conditions are written."""

    def __init__(self, values: Iterable[object] = ()) -> None:
        self.values = list(values)

    def value(self, value: object) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def equals(self, column: str, value: object) -> str:
        placeholder = self.value(value)
        if column != "correlation_id":
            return f"{column} = {placeholder}"
        # An index takes no text of any length, so that of correlation ids has their beginnings.
        return f"left(correlation_id, 64) = left({placeholder}, 64) and correlation_id = {placeholder}"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} = any({self.value(list(values))})"

    def contains(self, column: str, text: str) -> str:
        return f"position({self.value(text.lower())} in lower({column})) > 0"


def inbox_parameters(selection: InboxSelection) -> tuple[object, ...]:
    """List the conditions as the inbox statements take them: null where one is not set."""
    ids = None if selection.message_ids is None else list(selection.message_ids)
    return selection.consumer, ids, selection.error


def _choose_statements(states: Sequence[State], selection: Selection) -> list[tuple[str, State | None]]:
    """List the statements that find these states, with the status to look for in history.

    One query over everything would walk the tables; each of these walks the index that holds its states.
    """
    statements: list[tuple[str, State | None]] = []
    if State.PENDING in states:
        statements.append((_choose_pending(selection), None))
    if State.SENDING in states:
        statements.append(("find_sending", None))
    if State.FAILED in states:
        statements.append(("find_held", None))
    if selection.phase is not None:
        return statements
    return statements + [("find_closed", state) for state in State if state.is_closed and state in states]


def _choose_pending(selection: Selection) -> str:
    if selection.phase in _WAITING:
        return "find_waiting"
    return "find_tried" if selection.tried or selection.min_attempts else "find_pending"


def _list_values(
    statement: str, status: State | None, selection: Selection, now: datetime | None
) -> tuple[object, ...]:
    """List the values of a statement that finds messages, after its limit."""
    if statement == "find_held":
        return ()
    if statement == "find_waiting":
        return (now, _WAITING[selection.phase], selection.destination)  # type: ignore[index]
    return (now if status is None else status.value,)


def _is_walked(selection: Selection) -> bool:
    """Return whether the age of delivered messages is all that a search for them could use an index for."""
    return selection.changed_before is not None and selection.ids is None and selection.message_ids is None


def _bound(window: Window, where: str, parameters: Parameters) -> str:
    return f"{where} and id > {parameters.value(window.after)} and id <= {parameters.value(window.last)}"


def _count_from_row(row: Any) -> Count:
    destination, topic, state, due, count, oldest_at, more = row[:7]
    return Count(
        destination=destination, topic=topic, state=State(state), due=due, count=count, oldest_at=oldest_at, more=more
    )


def _pending_from_row(row: Any) -> Count:
    destination, topic, *rest = row
    return _count_from_row((destination, topic, State.PENDING, *rest))
