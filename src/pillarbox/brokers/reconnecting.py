"""A connection that is opened when it is needed, and again after it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from pillarbox.brokers.errors import not_open_error
from pillarbox.errors import TransportUnavailable

__all__ = ["Connection", "ReconnectingConnection"]


class Connection(Protocol):
    """A connection that is up until `reason` says why it broke. A broken one never comes back."""

    @property
    def reason(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class ReconnectingConnection(Generic[C]):
    """Opens a connection when one is needed, and a new one after it broke.

    Nothing reconnects in the background: the next `get` does. `connect` must close what it has opened so far when it
    fails or is cancelled. `owner` names the transport or receiver in errors, such as "nats transport".
    """

    def __init__(self, connect: Callable[[], Awaitable[C]], *, owner: str) -> None:
        self._connect = connect
        self._owner = owner
        self._lock = asyncio.Lock()
        self._is_open = False
        self._failures = 0
        self._last_failure = ""
        self.current: C | None = None
        """The last connection, perhaps broken."""

    async def open(self) -> None:
        """Connect for the first time; closed again if that fails."""
        self._is_open = True
        try:
            await self.get()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection. One that is being opened meanwhile is closed by the `get` that opens it."""
        self._is_open = False
        await self._close_current()

    async def get(self) -> C:
        """Return the live connection; raise `TransportUnavailable` if none can be opened."""
        current = self.current
        if current is not None and current.reason is None:
            return current
        failures = self._failures
        async with self._lock:
            self._check_open()
            # Callers that waited for an attempt share its failure. Otherwise each would time out after the other.
            if self._failures > failures:
                raise TransportUnavailable(self._last_failure)
            if self.current is None or self.current.reason is not None:
                await self._close_current()
                self.current = await self._open_new()
            return self.current

    def is_current(self, connection: object) -> bool:
        """Return True for the connection in use. A delivery can be acknowledged only over the one that brought it."""
        return connection is self.current

    async def _open_new(self) -> C:
        try:
            connection = await self._connect()
        except TransportUnavailable as error:
            self._failures, self._last_failure = self._failures + 1, str(error)
            raise
        try:
            self._check_open()  # `close` may have been called while this connected
        except TransportUnavailable:
            await connection.close()
            raise
        return connection

    async def _close_current(self) -> None:
        if self.current is not None:
            connection, self.current = self.current, None
            await connection.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_open_error(self._owner)
