"""The interface between the store and a PostgreSQL driver.

It follows asyncpg's own methods, so asyncpg needs no wrapper. Statements reach every driver as they are: placeholders
`$1`, and parameters of the types that the server expects there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from pillarbox.errors import MissingExtra
from pillarbox.hosts import HostList

__all__ = [
    "EPOCH",
    "Connection",
    "Driver",
    "DriverName",
    "Isolation",
    "OnConnect",
    "OnNotification",
    "Pool",
    "Refusal",
    "Settings",
    "decode_time",
    "encode_time",
    "list_servers",
    "load_driver",
]

DriverName = Literal["asyncpg", "psycopg"]
Isolation = Literal["read_committed", "repeatable_read"]
OnNotification: TypeAlias = Callable[[Any, int, str, object], None]
"""Called with the connection, the sender's process, the channel and the payload."""

Settings: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of settings that a session begins with."""

OnConnect: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]
"""Sets a new connection up."""

_NEEDED_FOR: Final = "The PostgreSQL store"
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""PostgreSQL counts microseconds from here."""
_MICROSECOND: Final = timedelta(microseconds=1)


def decode_time(microseconds: int) -> datetime | None:
    """Decode a `timestamptz`, which counts from 2000. None if no `datetime` can hold it, as infinity.

    The drivers' own decoders raise for such a value: one row of somebody would end the read of all others.
    """
    try:
        return EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:
        return None


def encode_time(at: datetime) -> int:
    """Encode a time as PostgreSQL counts it."""
    return (at - EPOCH) // _MICROSECOND


_ATTRIBUTES: Final = "target_session_attrs"


def list_servers(url: str) -> HostList[str]:
    """Return a URL for each server of this one, which may name several: `postgresql://db-1,db-2/shop`.

    Of several the one that takes writes is wanted, unless the URL says otherwise. Drivers can do that too, but a server
    that is frozen uses up all their time, and the others are not tried.
    """
    address, _, query = url.partition("?")
    scheme, _, rest = address.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    pairs = [pair for pair in query.split("&") if pair]
    if "," not in hosts or f"{_ATTRIBUTES}=prefer-standby" in pairs:
        return HostList([url])
    if not any(pair.startswith(f"{_ATTRIBUTES}=") for pair in pairs):
        pairs.append(f"{_ATTRIBUTES}=read-write")
    return HostList([f"{scheme}://{login}{at}{host}{slash}{path}?{'&'.join(pairs)}" for host in hosts.split(",")])


class Connection(Protocol):
    """One session, outside a transaction until one begins. Rows are read by position."""

    async def fetch(self, query: str, *values: object) -> Sequence[Any]:
        """Return all rows."""

    async def fetchrow(self, query: str, *values: object) -> Any:
        """Return the first row, or None."""

    async def fetchval(self, query: str, *values: object) -> Any:
        """Return the first value of the first row, or None."""

    async def execute(self, query: str, *values: object) -> str:
        """Return the server's status, such as `DELETE 3`. Without values the text may hold several statements."""

    def transaction(self, *, isolation: Isolation, readonly: bool = False) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction that commits at the end of the block; an error rolls it back."""

    async def add_listener(self, channel: str, on_notification: OnNotification) -> None:
        """Listen to a channel, and call the function for each notification."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the session."""


class Pool(Protocol):
    """Connections to lend. A lost one is replaced before it is lent again."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Any]:
        """Lend a connection; `TimeoutError` when none is free in time."""

    async def close(self) -> None:
        """Close all connections, once they have come back."""

    def abort(self) -> None:
        """Drop connections at once, without a word to the server. Whoever uses one gets an error."""


class Refusal(msgspec.Struct, frozen=True):
    """The server's answer to a statement or login that it refused."""

    state: str
    """The SQLSTATE; empty when there was none."""
    message: str
    """One line. Details, which may quote what is in a row, are left out."""


class Driver(Protocol):
    """Opens connections and pools, and reads the driver's errors."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """Every error that the driver can raise."""

    async def connect(self, url: str, *, timeout: float, command_timeout: float | None = None) -> Connection:
        """Open a connection that prepares no statement."""

    async def create_pool(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        on_connect: OnConnect | None = None,
        settings: Settings | None = (),
    ) -> Pool:
        """Open `size` connections with these settings, and call `on_connect` once for each.

        `settings` is None where a pooler stands in between and nothing outlives a transaction.
        """

    def parse_refusal(self, error: Exception) -> Refusal | None:
        """Return the server's refusal; None when the server was not reached or did not answer."""

    def abort(self, connection: Any) -> None:
        """Drop a connection at once, without a word to the server. A statement under way ends with an error."""

    def unwrap(self, connection: Any) -> Any:
        """Return the driver's own connection, whose transaction a writer can join."""


def load_driver(name: DriverName | None = None) -> Driver:
    """Load that driver, by default asyncpg if it is installed and psycopg otherwise; `MissingExtra` without it."""
    if name == "psycopg":
        return _load_psycopg()
    try:
        from pillarbox.stores.postgres.asyncpg_driver import AsyncpgDriver
    except ModuleNotFoundError as error:
        if name == "asyncpg":
            raise MissingExtra("asyncpg", extra="postgres", needed_for=_NEEDED_FOR) from error
        return _load_psycopg(instead_of="asyncpg")
    return AsyncpgDriver()


def _load_psycopg(*, instead_of: str | None = None) -> Driver:
    try:
        from pillarbox.stores.postgres.psycopg_driver import PsycopgDriver
    except ImportError as error:  # psycopg may be installed, but too old or without libpq
        needed = "psycopg 3.2 or newer with libpq"
        if instead_of is None:
            raise MissingExtra(needed, extra="psycopg", needed_for=_NEEDED_FOR) from error
        raise MissingExtra(f"{instead_of}, or {needed}", extra="postgres", needed_for=_NEEDED_FOR) from error
    return PsycopgDriver()
