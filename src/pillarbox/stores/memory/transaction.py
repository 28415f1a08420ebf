"""The write path of the memory store: a transaction whose rows are visible from its commit on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from pillarbox.clock import Clock
from pillarbox.errors import NotInTransaction, StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Accept, Fail, Forget, InboxAsk, Insert, Redriven, Start
from pillarbox.stores.memory.data import InboxKey, InboxRow, MemoryData

__all__ = ["MemoryTransaction"]


class MemoryTransaction:
    """A `Writer` of its own. Ids are drawn at the insert and become visible at the commit, in whatever order.

    As a context manager, sync or async, it commits at the end of the block and rolls back on an exception. After
    either, writing is `NotInTransaction`. What another open transaction holds cannot be waited for here, as nothing
    ever waits: it is `StoreUnavailable`, and trying again later is right.
    """

    def __init__(self, data: MemoryData, *, clock: Clock) -> None:
        self._data = data
        self._clock = clock
        self._tx: int | None = None
        self._rows: list[Message] = []
        self._accepted: dict[InboxKey, InboxRow] = {}
        self._ended = False

    def insert(self, batch: Insert) -> None:
        """Write the rows, visible when this commits."""
        tx = self._begun()
        if batch.serialize_keys:
            for key in sorted({message.key for message in batch.messages if message.key is not None}):
                self._hold(("key", key), f"key {key}")
        now = self._clock.now()
        self._rows += [self._row(message, tx, now, batch.delay) for message in batch.messages]

    def ask(self, ask: InboxAsk) -> Any:
        """Do what is asked of the inbox, and answer as it says."""
        self._begun()
        if isinstance(ask, Redriven):
            return self._redriven(ask)
        if isinstance(ask, Forget):
            return self._forget(ask)
        key = (ask.consumer, ask.source, ask.message_id)
        self._hold(("inbox", key), f"message {ask.message_id} for consumer {ask.consumer}")
        seen = self._accepted.get(key) or self._data.inbox.get(key)
        self._accepted[key], answer = _inbox_row(seen, ask, self._clock.now())
        return answer

    def _redriven(self, ask: Redriven) -> list[bytes]:
        rows = sorted(
            (row.status_at, row.message)
            for (consumer, _, _), row in {**self._data.inbox, **self._accepted}.items()
            if consumer == ask.consumer and row.status == "started" and row.message is not None
        )
        return [message for _, message in rows[: ask.limit]]

    def _forget(self, ask: Forget) -> int:
        """At once: nothing asks for a record that is outside the window."""
        before = self._clock.now() - ask.older_than
        old = [
            key
            for key, row in self._data.inbox.items()
            if key[0] == ask.consumer and row.status == "done" and row.status_at <= before
        ][: ask.limit]
        for key in old:
            del self._data.inbox[key]
        return len(old)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part that is undone alone when the block raises."""
        rows, accepted = len(self._rows), dict(self._accepted)
        try:
            yield
        except BaseException:
            del self._rows[rows:]
            self._accepted = accepted
            raise

    def commit(self) -> None:
        """Make everything visible at once."""
        self._end()
        for row in self._rows:
            self._data.open.put(row)
        self._data.inbox.update(self._accepted)
        for wake in self._data.wakes if self._rows else ():
            wake()

    def rollback(self) -> None:
        """Drop everything. The ids that were drawn never come again."""
        self._end()

    def close(self) -> None:
        """Roll back what was not committed. Closing twice is harmless."""
        if not self._ended:
            self.rollback()

    def _begun(self) -> int:
        """The transaction id, drawn before the first row's own id, or late rows could not be told."""
        if self._ended:
            raise NotInTransaction(
                "This memory transaction has ended, so nothing would be written; open another with store.transaction()."
            )
        if self._tx is None:
            self._tx = self._data.transactions.begin()
        return self._tx

    def _hold(self, name: object, what: str) -> None:
        if not self._data.transactions.lock(name, self._begun()):
            raise StoreUnavailable(f"Another open transaction holds {what}; end that one, then try again.")

    def _row(self, message: Message, tx: int, now: datetime, delay: timedelta | None) -> Message:
        available_at = _in_utc(message.available_at) if delay is None else now + delay
        return replace(
            message,
            id=self._data.transactions.draw_id(tx),
            event_time=message.event_time.astimezone(UTC),
            created_at=now,
            available_at=available_at,
            waits=None if available_at is None else Waits.DEFERRED,
            attempts=0,
            last_error=None,
            status_at=now,
            state=State.PENDING,
        )

    def _end(self) -> None:
        if self._ended:
            raise NotInTransaction("This memory transaction has ended already; it can be ended only once.")
        self._ended = True
        if self._tx is not None:
            self._data.transactions.end(self._tx)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.commit() if kind is None else self.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _in_utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def _inbox_row(seen: InboxRow | None, ask: Accept, now: datetime) -> tuple[InboxRow, Any]:
    """The row as it is afterwards, and the answer."""
    if seen is not None and seen.status == "done":
        if isinstance(ask, Start):
            return seen, 0
        if isinstance(ask, Fail):
            return seen, None
        return replace(seen, duplicates=seen.duplicates + 1), False
    match ask:
        case Start():
            again = seen is not None and seen.status == "started"
            row = seen or InboxRow("started", now)
            row = replace(row, status="started", status_at=now, attempts=row.attempts + 1 if again else 1)
            return row, row.attempts
        case Fail():
            return InboxRow("failed", now, ask.attempts, 0, ask.error, ask.message), None
        case _:
            return InboxRow("done", now), True
