"""The seam between the store and the driver that carries it.

It is cut along asyncpg's own methods, so asyncpg needs nothing in between. Statements reach every driver as they are:
placeholders `$1`, and parameters of the types that the server expects there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from pillarbox.errors import MissingExtra

__all__ = ["Connection", "Driver", "DriverName", "Heard", "Init", "Isolation", "Pool", "Refusal", "driver_called"]

DriverName = Literal["asyncpg", "psycopg"]
Isolation = Literal["read_committed", "repeatable_read"]
Heard: TypeAlias = Callable[[Any, int, str, object], None]
"""Told of a notification: the connection, the sender's process, the channel, the payload."""

Init: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]
"""Makes a new connection ready."""

_NEEDED_FOR: Final = "The PostgreSQL store"


class Connection(Protocol):
    """One session, outside a transaction until it is told. Rows are read by position."""

    async def fetch(self, query: str, *values: object) -> Sequence[Any]:
        """All rows."""

    async def fetchrow(self, query: str, *values: object) -> Any:
        """The first row, or None."""

    async def fetchval(self, query: str, *values: object) -> Any:
        """The first value of the first row, or None."""

    async def execute(self, query: str, *values: object) -> str:
        """What the server says of it, such as `DELETE 3`. Without values it may be several statements."""

    def transaction(self, *, isolation: Isolation, readonly: bool = False) -> AbstractAsyncContextManager[Any]:
        """Commits at its end; an error rolls it back."""

    async def add_listener(self, channel: str, heard: Heard) -> None:
        """Have a function called for whatever is notified there."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Let go."""


class Pool(Protocol):
    """Connections that are lent. One that was lost is replaced before it is lent again."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Any]:
        """Lend a connection; `TimeoutError` when none is free in time."""

    async def close(self) -> None:
        """Let go of all connections, once they have come back."""


class Refusal(msgspec.Struct, frozen=True):
    """The server's no."""

    state: str
    """Its SQLSTATE; empty when there was none."""
    message: str
    """One line. Details, which may quote what is in a row, are left out."""


class Driver(Protocol):
    """What the store needs of a driver."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """All that it can raise."""

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        """A connection that prepares no statement."""

    async def pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        init: Init | None = None,
        is_direct: bool = True,
    ) -> Pool:
        """So many connections, each given to `init` once. Where they are not direct, nothing outlives a transaction."""

    def refusal(self, error: Exception) -> Refusal | None:
        """What the server refused with; None when it was not reached or did not answer."""

    def handle(self, connection: Any) -> Any:
        """What a writer joins: the driver's own connection."""


def driver_called(name: DriverName | None = None) -> Driver:
    """That driver, or asyncpg if it is installed and psycopg otherwise. `MissingExtra` when it is not there."""
    if name == "psycopg":
        return _psycopg()
    try:
        from pillarbox.stores.postgres.drivers.asyncpg import AsyncpgDriver
    except ModuleNotFoundError as error:
        if name == "asyncpg":
            raise MissingExtra("asyncpg", extra="postgres", needed_for=_NEEDED_FOR) from error
        return _psycopg(instead_of="asyncpg")
    return AsyncpgDriver()


def _psycopg(*, instead_of: str | None = None) -> Driver:
    try:
        from pillarbox.stores.postgres.drivers.psycopg import PsycopgDriver
    except ImportError as error:  # without libpq, or too old, it is there and cannot be imported
        needed = "psycopg 3.2 or newer with libpq"
        if instead_of is None:
            raise MissingExtra(needed, extra="psycopg", needed_for=_NEEDED_FOR) from error
        raise MissingExtra(f"{instead_of}, or {needed}", extra="postgres", needed_for=_NEEDED_FOR) from error
    return PsycopgDriver()
