"""What people do with messages. Each action is one transaction and lands in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pillarbox.durations import FOREVER
from pillarbox.journal import Action
from pillarbox.message import Message, State
from pillarbox.protocols import InboxFailure, InboxSelection, Moved, Pause, Selection
from pillarbox.stores.operations import able_states, refused
from pillarbox.stores.stepwise.asking import Asking, found
from pillarbox.stores.stepwise.parts import Transaction
from pillarbox.stores.stepwise.rows import microseconds, span, time_of

__all__ = ["Operating"]


class Operating(Asking):
    """The operating part of the store."""

    async def redrive(self, selection: Selection, *, by: str, limit: int, to: str | None = None) -> Moved:
        states = able_states(Action.REDRIVEN, selection, to=to)
        return await self._database.writing(
            lambda tx: _reopened(tx, Action.REDRIVEN, selection, states, by=by, limit=limit, to=to)
        )

    async def replay(self, selection: Selection, *, by: str, limit: int) -> Moved:
        states = able_states(Action.REPLAYED, selection)
        return await self._database.writing(
            lambda tx: _reopened(tx, Action.REPLAYED, selection, states, by=by, limit=limit, to=None)
        )

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> Moved:
        def work(tx: Transaction) -> Moved:
            messages = found(tx, selection, states=able_states(Action.DISCARDED, selection), limit=limit)
            asked = {"ids": _ids(messages), "reason": reason}
            for name in ("discard_failed", "discard_open", "close"):
                tx.run(name, asked)
            return _told(tx, Action.DISCARDED, selection, messages, by=by, reason=reason)

        return await self._database.writing(work)

    async def defer(self, selection: Selection, *, until: datetime, by: str, limit: int) -> Moved:
        def work(tx: Transaction) -> Moved:
            states = able_states(Action.DEFERRED, selection)
            messages = found(tx, selection, states=states, limit=limit, parked=False)
            tx.run("defer", {"ids": _ids(messages), "until": microseconds(until)})
            return _told(tx, Action.DEFERRED, selection, messages, by=by)

        return await self._database.writing(work)

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        if older_than >= FOREVER:
            return 0
        asked = {"state": state.value, "older_than": span(older_than), "limit": limit}
        return await self._database.writing(lambda tx: _purged(tx, [row[0] for row in tx.rows("purge_due", asked)]))

    async def purge_ids(self, ids: Sequence[int]) -> int:
        return await self._database.writing(lambda tx: _purged(tx, ids))

    async def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        if older_than >= FOREVER:
            return 0
        asked = {"older_than": span(older_than), "limit": limit}
        return await self._database.writing(lambda tx: tx.run("purge_inbox", asked))

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        return await self._database.reading(lambda tx: _inbox_failures(tx, selection, limit))

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int) -> int:
        return await self._database.writing(
            lambda tx: _inbox_changed(tx, "redrive_inbox", selection, limit, Action.REDRIVEN, by=by)
        )

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        return await self._database.writing(
            lambda tx: _inbox_changed(tx, "discard_inbox", selection, limit, Action.DISCARDED, by=by, reason=reason)
        )

    async def note(self, action: str, *, by: str, detail: str) -> None:
        asked = {"action": action, "by": by, "detail": detail}
        await self._database.writing(lambda tx: tx.run("journal_store", asked))

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        def work(tx: Transaction) -> None:
            if tx.run("pause", {"destination": destination, "by": by, "reason": reason}):
                _note(tx, destination, Action.PAUSED, by=by, reason=reason)

        await self._database.writing(work)

    async def resume(self, destination: str, *, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            resumed = tx.run("resume", {"destination": destination}) > 0
            if resumed:
                _note(tx, destination, Action.RESUMED, by=by)
            return resumed

        return await self._database.writing(work)

    async def pauses(self) -> Sequence[Pause]:
        rows = await self._database.rows("pauses")
        return [Pause(destination=name, by=by, at=time_of(at), reason=reason) for name, by, at, reason in rows]


def _reopened(
    tx: Transaction,
    action: Action,
    selection: Selection,
    states: Sequence[State],
    *,
    by: str,
    limit: int,
    to: str | None,
) -> Moved:
    """Closed and held messages re-enter, never as fresh ones. What has no payload any more stays closed."""
    messages = found(tx, selection, states=states, limit=limit)
    asked = {"ids": _ids([message for message in messages if message.payload_kept]), "to": to}
    for name in ("reopen_held", "reopen_closed", "forget_closed"):
        tx.run(name, asked)
    return _told(tx, action, selection, messages, by=by)


def _ids(messages: Sequence[Message]) -> list[int]:
    return [message.id for message in messages]


def _told(
    tx: Transaction,
    action: Action,
    selection: Selection,
    messages: Sequence[Message],
    *,
    by: str,
    reason: str | None = None,
) -> Moved:
    """The journal's lines for what was moved, in id order; or why nothing was."""
    if not messages:
        return _nothing(tx, action, selection)
    moved = [message for message in messages if message.payload_kept]
    for message in moved:
        _note(tx, message.destination, action, by=by, reason=reason, message_id=str(message.message_id))
    return Moved(len(moved), messages[-1].id, len(messages) - len(moved))


def _nothing(tx: Transaction, action: Action, selection: Selection) -> Moved:
    named = Selection(ids=selection.ids, message_ids=selection.message_ids)
    there = found(tx, named, states=tuple(State), limit=1) if selection.ids or selection.message_ids else []
    return refused(selection, [(message.id, message.state) for message in there], action)


def _note(
    tx: Transaction,
    destination: str,
    action: Action,
    *,
    by: str,
    reason: str | None = None,
    message_id: str | None = None,
) -> None:
    tx.run("journal_note", {
        "message_id": message_id, "destination": destination, "action": action.value, "by": by, "reason": reason,
    })  # fmt: skip


def _purged(tx: Transaction, ids: Sequence[int]) -> int:
    asked = {"ids": list(ids)}
    tx.run("purge_journal", asked)
    return tx.run("forget_closed", asked)


def _inbox_failures(tx: Transaction, selection: InboxSelection, limit: int) -> list[InboxFailure]:
    asked = {
        "consumer": selection.consumer, "all_ids": selection.message_ids is None,
        "message_ids": list(selection.message_ids or ()),
        "error": None if selection.error is None else selection.error.casefold(), "limit": limit,
    }  # fmt: skip
    return [
        InboxFailure(
            consumer=row[0], source=row[1], message_id=row[2], attempts=row[3], error=row[4],
            failed_at=time_of(row[5]), content=row[6],
        )
        for row in tx.rows("inbox_failures", asked)
    ]  # fmt: skip


def _inbox_changed(
    tx: Transaction,
    name: str,
    selection: InboxSelection,
    limit: int,
    action: Action,
    *,
    by: str,
    reason: str | None = None,
) -> int:
    chosen = _inbox_failures(tx, selection, limit)
    for one in chosen:
        values = {"consumer": one.consumer, "source": one.source, "message_id": one.message_id, "reason": reason}
        tx.run(name, values)
        tx.run("journal_inbox", {**values, "action": action.value, "by": by})
    return len(chosen)
