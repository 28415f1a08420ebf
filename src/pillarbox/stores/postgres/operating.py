"""What people do with messages. Each action is one transaction and lands in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pillarbox.journal import Action
from pillarbox.message import State
from pillarbox.protocols import InboxFailure, InboxSelection, Moved, Pause, Selection
from pillarbox.stores.operations import able_states, refused
from pillarbox.stores.postgres.asking import Asking, Parameters
from pillarbox.stores.selection import conditions

__all__ = ["Operating"]


class Operating(Asking):
    """The operating part of the store."""

    async def redrive(self, selection: Selection, *, by: str, limit: int, to: str | None = None) -> Moved:
        states = able_states(Action.REDRIVEN, selection, to=to)
        return await self._reopened(Action.REDRIVEN, selection, states, by=by, limit=limit, to=to)

    async def replay(self, selection: Selection, *, by: str, limit: int) -> Moved:
        states = able_states(Action.REPLAYED, selection)
        return await self._reopened(Action.REPLAYED, selection, states, by=by, limit=limit)

    async def _reopened(
        self,
        action: Action,
        selection: Selection,
        states: Sequence[State],
        *,
        by: str,
        limit: int,
        to: str | None = None,
    ) -> Moved:
        held = State.FAILED in states
        return await self._moved("reopen", action, selection, _values(states), held, to, limit, action.value, by)

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> Moved:
        states = able_states(Action.DISCARDED, selection)
        return await self._moved("discard", Action.DISCARDED, selection, _values(states), reason, by, limit)

    async def defer(self, selection: Selection, *, until: datetime, by: str, limit: int) -> Moved:
        wanted = bool(able_states(Action.DEFERRED, selection))
        return await self._moved("defer", Action.DEFERRED, selection, until, by, limit if wanted else 0)

    async def _moved(self, name: str, action: Action, selection: Selection, *values: object) -> Moved:
        parameters = Parameters((*values, self._now()))
        where = conditions(selection, parameters)
        async with self._database.asking() as connection:
            count, last_id, bare = await connection.fetchrow(self._sql.filled(name, where), *parameters.values)
        if last_id is not None:
            return Moved(count, last_id, bare)
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = await self.find(named, limit=1, payloads=False)
        return refused(selection, [(message.id, message.state) for message in found], action)

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        if older_than == timedelta.max:
            return 0
        return await self._deleted("purge", state.value, older_than, limit, self._now())

    async def purge_ids(self, ids: Sequence[int]) -> int:
        return await self._deleted("purge_ids", list(ids))

    async def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        if older_than == timedelta.max:
            return 0
        return await self._deleted("purge_inbox", older_than, limit, self._now())

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        async with self._database.asking() as connection:
            rows = await connection.fetch(self._sql["inbox_failures"], *_chosen(selection), limit)
        return [
            InboxFailure(
                consumer=row[0], source=row[1], message_id=row[2], attempts=row[3], error=row[4], failed_at=row[5],
                content=row[6],
            )
            for row in rows
        ]  # fmt: skip

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int) -> int:
        return await self._changed("redrive_inbox", *_chosen(selection), limit, by, self._now())

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        return await self._changed("discard_inbox", *_chosen(selection), limit, by, self._now(), reason)

    async def _changed(self, name: str, *values: object) -> int:
        async with self._database.asking() as connection:
            changed: int = await connection.fetchval(self._sql[name], *values)
        return changed

    async def _deleted(self, name: str, *values: object) -> int:
        async with self._database.durable() as connection:
            deleted: int = await connection.fetchval(self._sql[name], *values)
        return deleted

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

    async def pauses(self) -> Sequence[Pause]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["pauses"])
        return [Pause(destination=name, by=by, at=at, reason=reason) for name, by, at, reason in rows]


def _values(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]


def _chosen(selection: InboxSelection) -> tuple[object, ...]:
    ids = None if selection.message_ids is None else list(selection.message_ids)
    return selection.consumer, ids, selection.error
