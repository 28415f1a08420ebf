"""A connection of psycopg in the shape that the store uses."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import wait_async

from pillarbox.stores.postgres.drivers import Heard, Isolation
from pillarbox.stores.postgres.drivers.literals import literal

__all__ = ["ADAPTERS", "ERRORS", "Line", "PsycopgConnection"]

ERRORS: Final[tuple[type[Exception], ...]] = (psycopg.Error, OSError, TimeoutError)

_INTERVAL: Final = 0.1
"""How often psycopg looks up from a wait."""

_Answer = TypeVar("_Answer")


class _JsonText(Loader):
    """JSON as it stands, for whoever decodes it; the first byte is the format's version."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]


ADAPTERS: Final = AdaptersMap(psycopg.adapters)
"""How values come out of rows."""
ADAPTERS.register_loader("jsonb", _JsonText)


class Line(AsyncConnection[Any]):
    """A connection that is given up with the statement that is cancelled or too late on it.

    psycopg would ask the server to cancel, and wait for its answer: not on one that hangs.
    """

    patience: float | None = None

    async def wait(self, gen: PQGen[_Answer], *_: Any, **__: Any) -> _Answer:
        try:
            async with asyncio.timeout(self.patience):
                return await wait_async(gen, self.pgconn.socket, interval=_INTERVAL)
        except TimeoutError:
            self.pgconn.finish()
            raise TimeoutError(f"no answer within {self.patience:g} s") from None
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


class PsycopgConnection:
    """`Connection` over psycopg's.

    Times are told in UTC: as the session's setting, or where no setting outlives a transaction, as each one's.
    """

    def __init__(self, raw: Line, *, is_direct: bool) -> None:
        self.raw = raw
        self._is_direct = is_direct
        self._heard: Heard | None = None
        self._ear: int | None = None

    async def fetch(self, query: str, *values: object) -> Sequence[Any]:
        return await (await self._answered(query, values)).fetchall()

    async def fetchrow(self, query: str, *values: object) -> Any:
        return await (await self._answered(query, values)).fetchone()

    async def fetchval(self, query: str, *values: object) -> Any:
        row = await self.fetchrow(query, *values)
        return None if row is None else row[0]

    async def execute(self, query: str, *values: object) -> str:
        return (await self._answered(query, values, is_script=not values)).statusmessage or ""

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation, readonly: bool = False) -> AsyncIterator[None]:
        begin = f"begin isolation level {isolation.replace('_', ' ')}{' read only' if readonly else ''}"
        await self.execute(begin if self._is_direct else f"{begin}; set local timezone = 'UTC'")
        try:
            yield
        except BaseException:
            with contextlib.suppress(*ERRORS):  # what is not rolled back is not lent again
                await self.execute("rollback")
            raise
        await self.execute("commit")

    async def add_listener(self, channel: str, heard: Heard) -> None:
        self._heard = heard
        self.raw.add_notify_handler(lambda told: heard(self, told.pid, told.channel, told.payload))
        await self.execute(f'listen "{channel}"')

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ARG002 - it waits for nothing
        self._stop_hearing()
        await self.raw.close()

    def is_idle(self) -> bool:
        """It is there, and in no transaction."""
        return not self.raw.closed and self.raw.pgconn.transaction_status == TransactionStatus.IDLE

    def is_quiet(self) -> bool:
        """Nothing has come since the last answer: a server that goes away says so, or hangs up."""
        line = select.poll()
        line.register(self.raw.fileno(), select.POLLIN)
        return not line.poll(0)

    async def _answered(self, query: str, values: Sequence[object], *, is_script: bool = False) -> AsyncRawCursor[Any]:
        parameters = None if is_script else [literal(value) for value in values]
        cursor = AsyncRawCursor(self.raw, row_factory=tuple_row)
        self._stop_hearing()
        try:
            return await cursor.execute(
                query.encode(), parameters, prepare=False if is_script else None, binary=not is_script
            )
        except psycopg.errors.FeatureNotSupported:
            await self.close()  # a table changed after its statement was prepared: the next connection does it anew
            raise
        finally:
            self._hear_on()

    # --- hearing: psycopg does it while a statement runs, and we do it in between ---

    def _hear_on(self) -> None:
        if self._heard is not None and not self.raw.closed:
            self._ear = self.raw.fileno()
            asyncio.get_running_loop().add_reader(self._ear, self._hear)

    def _stop_hearing(self) -> None:
        if self._ear is not None:
            ear, self._ear = self._ear, None
            asyncio.get_running_loop().remove_reader(ear)

    def _hear(self) -> None:
        try:
            self.raw.pgconn.consume_input()
        except psycopg.OperationalError:
            self._stop_hearing()  # the next statement tells why
            return
        while self._heard is not None and (told := self.raw.pgconn.notifies()) is not None:
            self._heard(self, told.be_pid, told.relname.decode(), told.extra.decode())
