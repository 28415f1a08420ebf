"""What people do with messages. Each action lands in the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from msgspec.structs import replace

from pillarbox.journal import Action
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Entry, InboxFailure, InboxSelection, Moved, Pause, Selection
from pillarbox.stores.memory.data import InboxKey, InboxRow, Parts
from pillarbox.stores.memory.selection import matches
from pillarbox.stores.operations import able_states, inbox_entry, refused

__all__ = ["Operating"]


class Operating(Parts):
    """The operating part of the store."""

    async def redrive(self, selection: Selection, *, by: str, limit: int, to: str | None = None) -> Moved:
        states = able_states(Action.REDRIVEN, selection, to=to)
        return self._moved(Action.REDRIVEN, selection, states, self._again(to=to), by=by, limit=limit)

    async def replay(self, selection: Selection, *, by: str, limit: int) -> Moved:
        states = able_states(Action.REPLAYED, selection)
        return self._moved(Action.REPLAYED, selection, states, self._again(), by=by, limit=limit)

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> Moved:
        states = able_states(Action.DISCARDED, selection)

        def closed(message: Message) -> Message:
            return replace(message, state=State.DISCARDED, waits=None, last_error=reason, status_at=self._clock.now())

        return self._moved(Action.DISCARDED, selection, states, closed, by=by, limit=limit, reason=reason)

    async def defer(self, selection: Selection, *, until: datetime, by: str, limit: int) -> Moved:
        states = able_states(Action.DEFERRED, selection)

        def put_off(message: Message) -> Message | None:
            if message.waits is Waits.PARKED:
                return None
            return replace(message, waits=Waits.RETRY, available_at=until.astimezone(UTC), status_at=self._clock.now())

        return self._moved(Action.DEFERRED, selection, states, put_off, by=by, limit=limit)

    def _again(self, *, to: str | None = None) -> Callable[[Message], Message]:
        """How a message re-enters: never as a fresh one."""
        now = self._clock.now()

        def reopened(message: Message) -> Message:
            return replace(
                message,
                destination=to or message.destination,
                state=State.PENDING,
                waits=Waits.RETRY,
                available_at=now,
                attempts=0,
                status_at=now,
            )

        return reopened

    def _moved(
        self,
        action: Action,
        selection: Selection,
        states: Sequence[State],
        change: Callable[[Message], Message | None],
        *,
        by: str,
        limit: int,
        reason: str | None = None,
    ) -> Moved:
        """Change the first of the selected messages in these states; `change` leaves one alone by returning None."""
        selected = [message for message in self._data.messages() if matches(message, selection)]
        able = [(m, changed) for m in selected if m.state in states and (changed := change(m)) is not None][:limit]
        if not able:
            return self._nothing(action, selection)
        bare = [message for message, _ in able if not message.payload_kept]
        for message, changed in able:
            if message.payload_kept:
                self._data.keep(changed)
                self._write_down(message, action, by=by, reason=reason)
        return Moved(len(able) - len(bare), able[-1][0].id, len(bare))

    def _nothing(self, action: Action, selection: Selection) -> Moved:
        if selection.after:
            # The last page of several: what the earlier ones moved is no longer eligible, and that is no error.
            return Moved(0, selection.after)
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = [(message.id, message.state) for message in self._data.messages() if matches(message, named)]
        return refused(selection, found, action)

    def _write_down(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        self._data.journal.append(
            Entry(
                message_id=message.message_id,
                destination=message.destination,
                action=action,
                at=self._clock.now(),
                by=by,
                error=reason,
            )
        )

    async def note(self, action: str, *, by: str, detail: str) -> None:
        line = Entry(message_id=None, destination="*", action=action, at=self._clock.now(), by=by, detail=detail)
        self._data.journal.append(line)

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        now = self._clock.now()
        old = [row for row in self._data.history.values() if row.state is state and _age(row, now) >= older_than]
        return self._delete(sorted(old, key=attrgetter("status_at", "id"))[:limit])

    async def purge_ids(self, ids: Sequence[int]) -> int:
        return self._delete([row for id in set(ids) if (row := self._data.history.get(id)) is not None])

    def _delete(self, rows: Sequence[Message]) -> int:
        gone = {(row.message_id, row.destination) for row in rows}
        for row in rows:
            del self._data.history[row.id]
        self._data.journal[:] = [line for line in self._data.journal if (line.message_id, line.destination) not in gone]
        return len(rows)

    async def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        now = self._clock.now()
        done = [(key, row) for key, row in self._data.inbox.items() if row.status == "done"]
        old = [(row.status_at, key) for key, row in done if now - row.status_at >= older_than]
        gone = [key for _, key in sorted(old)[:limit]]
        for key in gone:
            del self._data.inbox[key]
        return len(gone)

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        return [
            InboxFailure(
                consumer=key[0], source=key[1], message_id=key[2], attempts=row.attempts, error=row.last_error,
                failed_at=row.status_at, content=row.message or b"",
            )
            for key, row in self._failed_in_inbox(selection, limit)
        ]  # fmt: skip

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int) -> int:
        def again(row: InboxRow) -> InboxRow:
            return replace(row, status="started", attempts=0, status_at=self._clock.now())

        return self._changed_in_inbox(selection, limit, again, Action.REDRIVEN, by=by)

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        def done(row: InboxRow) -> InboxRow:
            return replace(row, status="done", last_error=reason, message=None, status_at=self._clock.now())

        return self._changed_in_inbox(selection, limit, done, Action.DISCARDED, by=by, reason=reason)

    def _changed_in_inbox(
        self,
        selection: InboxSelection,
        limit: int,
        change: Callable[[InboxRow], InboxRow],
        action: Action,
        *,
        by: str,
        reason: str | None = None,
    ) -> int:
        chosen = self._failed_in_inbox(selection, limit)
        for key, row in chosen:
            self._data.inbox[key] = change(row)
            entry = inbox_entry(*key, action=action, by=by, at=self._clock.now(), reason=reason)
            self._data.journal.append(entry)
        return len(chosen)

    def _failed_in_inbox(self, selection: InboxSelection, limit: int) -> list[tuple[InboxKey, InboxRow]]:
        chosen = [
            (key, row)
            for key, row in self._data.inbox.items()
            if row.status == "failed"
            and selection.consumer in (None, key[0])
            and (selection.message_ids is None or key[2] in selection.message_ids)
            and (selection.error is None or selection.error.casefold() in (row.last_error or "").casefold())
        ]
        return sorted(chosen, key=lambda one: (one[1].status_at, one[0]))[:limit]

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        if destination in self._data.pauses:
            return
        now = self._clock.now()
        self._data.pauses[destination] = Pause(destination=destination, by=by, at=now, reason=reason)
        self._note(destination, Action.PAUSED, by=by, reason=reason)

    async def resume(self, destination: str, *, by: str) -> bool:
        if self._data.pauses.pop(destination, None) is None:
            return False
        self._note(destination, Action.RESUMED, by=by)
        return True

    async def pauses(self) -> Sequence[Pause]:
        return [self._data.pauses[destination] for destination in sorted(self._data.pauses)]

    def _note(self, destination: str, action: Action, *, by: str, reason: str | None = None) -> None:
        self._data.journal.append(
            Entry(message_id=None, destination=destination, action=action, at=self._clock.now(), by=by, error=reason)
        )


def _age(row: Message, now: datetime) -> timedelta:
    assert row.status_at is not None  # noqa: S101 - every stored message has it
    return now - row.status_at
