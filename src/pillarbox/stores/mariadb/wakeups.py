"""Wake-ups on servers that notify nobody: a connection of their own looks for new messages.

MariaDB looks by itself: one statement is a loop inside the server, and its answer comes when something new is
committed, or after a second. MySQL has no statement with a loop, so there each look is a statement of its own.

A look is a range of the primary key, above an id below which everything is older. It sees what is committed, so ids of
transactions in progress wake nobody, and its cost does not grow with the table. The range begins some way below the
highest id: a message that becomes visible late, after one with a higher id, is seen there. One that stands further
below is found by the next poll.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
import pymysql

from pillarbox.errors import StoreError
from pillarbox.message import Names
from pillarbox.stores.mariadb.connection import connect, get_error_number, map_errors
from pillarbox.tasks import cancel_all

__all__ = ["CommitWatcher", "Seen", "watch_commits"]

T = TypeVar("T")

_SHORT_INTERVAL: Final = 0.01
_LONG_INTERVAL: Final = 0.04
"""Seconds between two looks: while something came lately, and after nothing did for `_QUIET`. Each costs the server
0.2 ms, most of it to sleep and to wake up."""
_QUIET: Final = 5.0
_LOOK_REST: Final = 20
"""A look is followed by a rest of at least this many times its duration: it may have to pass over dead rows."""
_BOUND: Final = 1.0
"""Seconds after which an answer comes in any case: what the server goes on with for a client that is gone."""
_LATE: Final = 256
"""Ids below the highest one among which late ones are looked for."""
_RECONNECT_AFTER: Final = 5.0
_LONGEST_IDLE: Final = 15.0
"""Seconds after which an idle connection is not used again: a server or a firewall may have dropped it."""

_TIMEOUT: Final = 5.0
"""Seconds that the server may take to let us in, and for an answer beyond `_BOUND`."""
_SYNTAX: Final = 1064

_LOOK: Final = "select count(*), coalesce(sum(id), 0), coalesce(max(id), 0) from {outbox} where id > %(after)s"
_HIGHEST: Final = "select coalesce(max(id), 0) from {outbox}"
# It rests before it looks, so that a storm of commits is answered now and then, and not each time.
_LOOP: Final = """
begin not atomic
    declare turns, found, highest bigint default 0;
    declare total decimal(40) default 0;
    declare began_at datetime(6);
    declare ends_at datetime(6) default sysdate(6) + interval %(bound)s microsecond;
    declare rest double default %(interval)s;
    repeat
        do sleep(rest);
        set turns = turns + 1, began_at = sysdate(6);
        select count(*), coalesce(sum(id), 0), coalesce(max(id), 0) into found, total, highest
          from {outbox} where id > %(after)s;
        set rest = %(rest)s * timestampdiff(microsecond, began_at, sysdate(6)) / 1000000;
        set rest = least(1, greatest(%(interval)s, rest));
    until found <> %(count)s or total <> %(total)s or turns >= %(turns)s or began_at >= ends_at end repeat;
    select found, total, highest;
end"""

log: Final = logging.getLogger("pillarbox.store")


class Seen(msgspec.Struct, frozen=True):
    """Messages that a look saw above an id: how many, the sum of their ids, and the highest."""

    after: int
    count: int
    total: int
    highest: int

    def is_news(self, before: Seen) -> bool:
        """Return whether something came since that look. If fewer are left, some were settled, and that is no news."""
        return self.highest > before.highest or (self.count >= before.count and self.total != before.total)


@asynccontextmanager
async def watch_commits(
    url: str, *, names: Names, wake: Callable[[], None], asleep: asyncio.Event
) -> AsyncIterator[CommitWatcher]:
    """Call `wake` soon after messages were committed, while the block runs and the event is set."""
    watcher = CommitWatcher(url, names=names, wake=wake, asleep=asleep)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        await cancel_all([task])


class CommitWatcher:
    """One watching connection with a thread of its own, opened again when it breaks."""

    def __init__(self, url: str, *, names: Names, wake: Callable[[], None], asleep: asyncio.Event) -> None:
        self._url = url
        outbox = names.table("outbox", quote="`")
        self._look, self._highest, self._loop = (sql.format(outbox=outbox) for sql in (_LOOK, _HIGHEST, _LOOP))
        self._wake = wake
        self._asleep = asleep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pillarbox-mariadb-wakeups")
        self._connection: Any = None
        self._used_at = 0.0
        self._news_at = 0.0
        self._has_loops = False
        self.is_listening = False

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                try:
                    await self._watch()
                except StoreError as error:
                    if self.is_listening:
                        log.warning("wake-ups stopped, polling goes on: %s", error)
                self._drop()
                await asyncio.sleep(_RECONNECT_AFTER)
        finally:
            self._drop()
            self._thread.shutdown(wait=False)

    async def _watch(self) -> None:
        seen = await self._call(self._begin)
        self.is_listening = True
        self._wake()  # what was committed before that look is no news to any later one
        while True:
            await self._asleep.wait()
            if time.monotonic() - self._used_at > _LONGEST_IDLE:
                await self._call(self._connect)
            found = await self._call(self._wait_for_change, seen)
            if is_news := found.is_news(seen):
                found = await self._call(self._look_again, max(found.after, found.highest - _LATE))
            seen = found
            if is_news:
                self._news_at = time.monotonic()
                self._wake()  # after the last look, for what it saw is no news either

    async def _call(self, call: Callable[..., T], *arguments: object) -> T:
        def run() -> T:
            with map_errors():
                answer = call(*arguments)
            self._used_at = time.monotonic()
            return answer

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _drop(self) -> None:
        """Drop the connection. A thread that waits for an answer gets an error; the server ends soon by itself."""
        self.is_listening = False
        if (connection := self._connection) is not None:
            with suppress(Exception):
                connection._sock.shutdown(socket.SHUT_RDWR)
        self._thread.submit(self._close)

    # --- in the thread ---

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _connect(self) -> None:
        self._close()
        self._connection = connect(self._url, timeout=_TIMEOUT)
        self._connection._read_timeout = _BOUND + _TIMEOUT
        self._has_loops = "MariaDB" in self._connection.get_server_info()

    def _begin(self) -> Seen:
        self._connect()
        ((highest,),) = self._fetch(self._highest, {})
        return self._look_again(max(0, int(highest) - _LATE))

    def _look_again(self, after: int) -> Seen:
        ((count, total, highest),) = self._fetch(self._look, {"after": after})
        return Seen(after, int(count), int(total), int(highest))

    def _wait_for_change(self, seen: Seen) -> Seen:
        """Look until something has changed, or for `_BOUND`."""
        if self._has_loops:
            try:
                return self._loop_in_server(seen)
            except pymysql.ProgrammingError as error:
                if get_error_number(error) != _SYNTAX:
                    raise
                self._has_loops = False  # something between understands less than the server
        interval = rest = self._choose_interval()
        found, ends_at = seen, time.monotonic() + _BOUND
        while found == seen and time.monotonic() < ends_at:
            time.sleep(rest)
            began_at = time.monotonic()
            found = self._look_again(seen.after)
            rest = min(1.0, max(interval, _LOOK_REST * (time.monotonic() - began_at)))
        return found

    def _choose_interval(self) -> float:
        return _SHORT_INTERVAL if time.monotonic() - self._news_at < _QUIET else _LONG_INTERVAL

    def _loop_in_server(self, seen: Seen) -> Seen:
        interval = self._choose_interval()
        values = {
            "after": seen.after, "count": seen.count, "total": seen.total, "interval": interval,
            "rest": _LOOK_REST, "bound": round(_BOUND * 1_000_000), "turns": round(_BOUND / interval),
        }  # fmt: skip
        ((count, total, highest),) = self._fetch(self._loop, values)
        return Seen(seen.after, int(count), int(total), int(highest))

    def _fetch(self, sql: str, values: Mapping[str, object]) -> list[Any]:
        with self._connection.cursor() as cursor:  # closing it reads what is left of the answer
            cursor.execute(sql, values)
            return list(cursor.fetchall())
