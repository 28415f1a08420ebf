"""Actions of operators and of the janitor: redrive, discard, purge, pause. All of them are durable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pillarbox.contracts.store import Action, BulkResult, InboxSelection, Selection
from pillarbox.durations import FOREVER
from pillarbox.message import State
from pillarbox.stores.operations import eligible_states, explain_empty_batch
from pillarbox.stores.postgres.connection import Database, Now
from pillarbox.stores.postgres.queries import Parameters, PostgresQueries, inbox_parameters
from pillarbox.stores.sql import Statements, build_conditions

__all__ = ["PostgresOperations"]


class PostgresOperations:
    """Changes messages, inbox records and pauses on a person's word, with a line in the journal."""

    def __init__(self, database: Database, sql: Statements, queries: PostgresQueries, *, now: Now) -> None:
        self._database = database
        self._sql = sql
        self._queries = queries
        self._now = now

    # --- messages ---

    async def redrive(self, selection: Selection, *, by: str, limit: int, to: str | None = None) -> BulkResult:
        states = eligible_states(Action.REDRIVEN, selection, to=to)
        return await self._reopen(Action.REDRIVEN, selection, states, by=by, limit=limit, to=to)

    async def replay(self, selection: Selection, *, by: str, limit: int) -> BulkResult:
        states = eligible_states(Action.REPLAYED, selection)
        return await self._reopen(Action.REPLAYED, selection, states, by=by, limit=limit)

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        states = eligible_states(Action.DISCARDED, selection)
        return await self._run_batch("discard", Action.DISCARDED, selection, _to_values(states), reason, by, limit)

    async def defer(self, selection: Selection, *, until: datetime, by: str, limit: int) -> BulkResult:
        # The statement knows pending messages only: where they are not wanted, it may take none.
        wanted = bool(eligible_states(Action.DEFERRED, selection))
        return await self._run_batch("defer", Action.DEFERRED, selection, until, by, limit if wanted else 0)

    async def _reopen(
        self,
        action: Action,
        selection: Selection,
        states: Sequence[State],
        *,
        by: str,
        limit: int,
        to: str | None = None,
    ) -> BulkResult:
        held = State.FAILED in states
        return await self._run_batch("reopen", action, selection, _to_values(states), held, to, limit, action.value, by)

    async def _run_batch(self, statement: str, action: Action, selection: Selection, *values: object) -> BulkResult:
        parameters = Parameters((*values, self._now()))
        where = build_conditions(selection, parameters)
        async with self._database.unpinned() as connection:
            count, last_id, bare = await connection.fetchrow(self._sql.fill(statement, where), *parameters.values)
        if last_id is not None:
            return BulkResult(count, last_id, bare)
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = await self._queries.find(named, limit=1, payloads=False)
        return explain_empty_batch(selection, [(message.id, message.state) for message in found], action)

    # --- retention ---

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        if older_than == FOREVER:
            return 0
        return await self._delete("purge", state.value, older_than, limit, self._now())

    async def purge_ids(self, ids: Sequence[int]) -> int:
        return await self._delete("purge_ids", list(ids))

    async def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        if older_than == FOREVER:
            return 0
        return await self._delete("purge_inbox", older_than, limit, self._now())

    async def _delete(self, statement: str, *values: object) -> int:
        async with self._database.durable() as connection:
            deleted: int = await connection.fetchval(self._sql[statement], *values)
        return deleted

    # --- inboxes ---

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int) -> int:
        return await self._change_inbox("redrive_inbox", *inbox_parameters(selection), limit, by, self._now())

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        return await self._change_inbox("discard_inbox", *inbox_parameters(selection), limit, by, self._now(), reason)

    async def _change_inbox(self, statement: str, *values: object) -> int:
        async with self._database.unpinned() as connection:
            changed: int = await connection.fetchval(self._sql[statement], *values)
        return changed

    # --- the store and its destinations ---

    async def note(self, action: str, *, by: str, detail: str) -> None:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["journal_store"], action, by, detail, self._now())

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["pause"], destination, by, reason, self._now())

    async def resume(self, destination: str, *, by: str) -> bool:
        async with self._database.durable() as connection:
            resumed: Any = await connection.fetchval(self._sql["resume"], destination, by, self._now())
        return resumed is not None


def _to_values(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]
