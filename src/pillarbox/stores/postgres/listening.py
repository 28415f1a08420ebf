"""Being woken by writers: LISTEN on a connection of its own, which tests itself and falls silent rather than lie."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from pillarbox.errors import StoreError
from pillarbox.protocols import Wakeups
from pillarbox.stores.postgres.connection import mapped_errors
from pillarbox.stores.postgres.drivers import Connection, Driver
from pillarbox.stores.postgres.parts import Parts

__all__ = ["Listening"]

_CHANNEL: Final = "pillarbox"
_ANSWER_WITHIN: Final = 2.0
_TEST_EVERY: Final = 30.0
_RETRY_AFTER: Final = 5.0

log: Final = logging.getLogger("pillarbox.store")


class _Ear:
    """One listening connection. Behind a transaction pooler LISTEN is deaf without a word: a test finds out."""

    def __init__(self, driver: Driver, url: str, table: str, wake: Callable[[], None]) -> None:
        self._driver = driver
        self._url = url
        self._table = table
        self._wake = wake
        self._oid = ""
        self._expected: dict[str, asyncio.Event] = {}
        self.is_listening = False

    async def run(self) -> None:
        """Listen for as long as it works, again and again."""
        while True:
            try:
                with mapped_errors(self._driver):
                    await self._listen()
            except StoreError as error:
                if self.is_listening:
                    log.warning("wake-ups stopped, polling goes on: %s", error)
            self.is_listening = False
            await asyncio.sleep(_RETRY_AFTER)

    async def _listen(self) -> None:
        connection = await self._driver.connect(self._url, timeout=10, command_timeout=10)
        try:
            self._oid = str(await connection.fetchval("select $1::regclass::oid", self._table))
            await connection.add_listener(_CHANNEL, self._heard)
            while await self._hears_itself(connection):
                if not self.is_listening:
                    self.is_listening = True
                    self._wake()
                await asyncio.sleep(_TEST_EVERY)
            log.warning("a notification sent as a test did not arrive, polling goes on: is a pooler in between?")
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)

    async def _hears_itself(self, connection: Connection) -> bool:
        word, arrived = f"test {uuid4()}", asyncio.Event()
        self._expected[word] = arrived
        try:
            await connection.execute("select pg_notify($1, $2)", _CHANNEL, word)
            async with asyncio.timeout(_ANSWER_WITHIN):
                await arrived.wait()
        except TimeoutError:
            return False
        finally:
            del self._expected[word]
        return True

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == self._oid:
            self._wake()
        elif (arrived := self._expected.get(str(payload))) is not None:
            arrived.set()


class Listening(Parts):
    """The wake-up part of the store."""

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        ear = _Ear(self._database.driver, self._url, self._names.table("outbox"), wake)
        task = asyncio.create_task(ear.run())
        try:
            yield ear
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
