"""Wake-ups by LISTEN and NOTIFY, on a connection of their own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from pillarbox.errors import StoreError
from pillarbox.stores.postgres.connection import map_errors
from pillarbox.stores.postgres.driver import Connection, Driver
from pillarbox.tasks import cancel_all

__all__ = ["Listener", "listen"]

_CHANNEL: Final = "pillarbox"
_TEST_INTERVAL: Final = 30.0
_TEST_TIMEOUT: Final = 2.0
_RECONNECT_AFTER: Final = 5.0

log: Final = logging.getLogger("pillarbox.store")


@asynccontextmanager
async def listen(driver: Driver, url: str, *, table: str, wake: Callable[[], None]) -> AsyncIterator[Listener]:
    """Call `wake` after inserts into the table, while the block runs."""
    listener = Listener(driver, url, table=table, wake=wake)
    task = asyncio.create_task(listener.run())
    try:
        yield listener
    finally:
        await cancel_all([task])


class Listener:
    """One listening connection, opened again when it breaks.

    A transaction pooler accepts LISTEN and delivers nothing, without an error. So the listener sends itself a
    notification now and then, and `is_listening` only while that arrives.
    """

    def __init__(
        self,
        driver: Driver,
        url: str,
        *,
        table: str | None,
        wake: Callable[[], None],
        on_table: Callable[[str], None] | None = None,
    ) -> None:
        self._driver = driver
        self._url = url
        self._table = table
        self._wake = wake
        self._on_table = on_table
        """Called with the oid of a table that is not `table`. Whoever listens for several stores has no table."""
        self._table_oid = ""
        self._tests: dict[str, asyncio.Event] = {}
        self.is_listening = False

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                with map_errors(self._driver):
                    await self._listen()
            except StoreError as error:
                if self.is_listening:
                    log.warning("wake-ups stopped, polling goes on: %s", error)
            self.is_listening = False
            await asyncio.sleep(_RECONNECT_AFTER)

    async def _listen(self) -> None:
        connection = await self._driver.connect(self._url, timeout=10, command_timeout=10)
        try:
            # The trigger sends the table's oid: several schemas of one database share the channel.
            if self._table is not None:
                self._table_oid = str(await connection.fetchval("select $1::regclass::oid", self._table))
            await connection.add_listener(_CHANNEL, self._on_notification)
            while await self._receives_a_test(connection):
                if not self.is_listening:
                    self.is_listening = True
                    # What was committed before this moment notified nobody: poll once.
                    self._wake()
                await asyncio.sleep(_TEST_INTERVAL)
            log.warning("a notification sent as a test did not arrive, polling goes on: is a pooler in between?")
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)

    async def _receives_a_test(self, connection: Connection) -> bool:
        payload, arrived = f"test {uuid4()}", asyncio.Event()
        self._tests[payload] = arrived
        try:
            await connection.execute("select pg_notify($1, $2)", _CHANNEL, payload)
            async with asyncio.timeout(_TEST_TIMEOUT):
                await arrived.wait()
        except TimeoutError:
            return False
        finally:
            del self._tests[payload]
        return True

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == self._table_oid:
            self._wake()
        elif (arrived := self._tests.get(str(payload))) is not None:
            arrived.set()
        elif self._on_table is not None:
            self._on_table(str(payload))
