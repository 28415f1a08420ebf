"""History walked by id, window by window, and purged that way.

It has no index by age, because every delivery would pay for it. Ids are given in the order of writing, and no message
is closed before it is written: behind a window of messages that were all written later than a time, none was closed
before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from pillarbox.message import State
from pillarbox.stores.postgres.connection import Database, Now
from pillarbox.stores.postgres.driver import Connection
from pillarbox.stores.postgres.partitions import FIRST_ID
from pillarbox.stores.sql import Statements

__all__ = ["FIRST_ID", "Purge", "Window", "leave_out", "read_window"]

_WINDOW: Final = 10_000
"""Messages that one statement looks at. It must be many: a few messages may have been closed again much later."""
_BEFORE_REPLACED: Final = 2**52 - 1
"""The ids above replace others, and are in no order."""


class Window(msgspec.Struct, frozen=True):
    """Ids above `after`, up to `last`."""

    after: int
    last: int
    next_after: int | None
    """The id after which the walk goes on; None at its end."""


async def read_window(
    connection: Connection,
    sql: Statements,
    *,
    after: int,
    before: datetime | None = None,
    older_than: timedelta | None = None,
    now: datetime | None = None,
    at_least: int = 0,
) -> Window | None:
    """Return the next ids at which delivered messages may have been closed before a time; None if there are no more."""
    last, is_end, is_later = await connection.fetchrow(
        sql["history_window"], after, max(_WINDOW, at_least), before, older_than, now
    )
    if last is None:
        return None
    if is_end:
        return Window(after, last, None)
    return Window(after, last, _BEFORE_REPLACED if is_later and after < _BEFORE_REPLACED else last)


def leave_out(window: Window, spared: Iterable[tuple[int, int]]) -> Window:
    """Return the window up to the first of the spared ids in it; the walk then goes on behind those."""
    for first, last in sorted(spared):
        if first <= window.after + 1 <= last:  # it begins among them: nothing is left of it
            return Window(window.after, window.after, last)
        if window.after < first <= window.last:
            return Window(window.after, first - 1, last)
    return window


class SparedIds(Protocol):
    """Knows the ids of partitions that will be dropped as a whole."""

    async def list_spared(self, older_than: timedelta) -> list[tuple[int, int]]:
        """List the first and last ids of each."""


class Purge:
    """Deletes closed messages that outlived their retention, each batch from where the last one ended.

    What is in a partition that is about to be dropped as a whole is left alone.

    A deleted row stays in the index while an old snapshot could see it. Batches that all began at the front would walk
    over every row that the earlier ones deleted.
    """

    def __init__(self, database: Database, sql: Statements, *, now: Now, partitions: SparedIds) -> None:
        self._database = database
        self._sql = sql
        self._now = now
        self._partitions = partitions
        self._marks: dict[tuple[State, timedelta], Any] = {}
        self._spared: dict[timedelta, list[tuple[int, int]]] = {}
        """The spared ids of each walk, by age. They are read when it begins."""

    async def run_once(self, state: State, *, older_than: timedelta, limit: int) -> int:
        """Delete one batch; return how many. 0 means that a walk from the front found nothing."""
        delete = self._delete_delivered if state is State.DELIVERED else self._delete_ended
        while True:
            mark = self._marks.pop((state, older_than), None)
            count, end = await delete(state, older_than, limit, mark)
            if count:
                self._marks[state, older_than] = end
                return count
            if mark is None:
                return 0

    async def _delete_delivered(
        self, _: State, older_than: timedelta, limit: int, mark: int | None
    ) -> tuple[int, int | None]:
        after = FIRST_ID if mark is None else mark
        if mark is None or older_than not in self._spared:
            self._spared[older_than] = await self._partitions.list_spared(older_than)
        while True:
            now = self._now()
            async with self._database.durable(limited=False) as connection:
                window = await read_window(
                    connection, self._sql, after=after, older_than=older_than, now=now, at_least=limit
                )
                if window is None:
                    return 0, None
                window = leave_out(window, self._spared[older_than])
                count, done = await connection.fetchrow(
                    self._sql["purge_delivered"], older_than, limit, now, window.after, window.last
                )
            if count:
                return count, done
            if window.next_after is None:
                return 0, None
            after = window.next_after

    async def _delete_ended(
        self, state: State, older_than: timedelta, limit: int, mark: tuple[str, str] | None
    ) -> tuple[int, tuple[str, str]]:
        begin = ("", "-infinity") if mark is None else mark
        async with self._database.durable(limited=False) as connection:
            count, destination, status_at = await connection.fetchrow(
                self._sql["purge_ended"], state.value, older_than, limit, self._now(), *begin
            )
        return count, (destination, status_at)
