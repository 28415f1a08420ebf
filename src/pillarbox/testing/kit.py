"""An outbox for tests: assertions on what was published, deliveries, and failures; no server, no waiting.

def test_an_order_is_announced(outbox_kit: OutboxKit) -> None:
    with outbox_kit.transaction() as tx:
        place_order(tx, order_id="1")
    outbox_kit.assert_published(OrderPlaced, order_id="1")
    assert outbox_kit.drain("billing") == 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, cast

from pillarbox import writers
from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Selection, Store
from pillarbox.contracts.writer import ListOpen
from pillarbox.errors import DecodeError
from pillarbox.events import DEFAULT_TYPES, Types, decode
from pillarbox.message import Message, Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from pillarbox.stores.sync_sql.rows import stored_message_from_row
from pillarbox.telemetry import Telemetry

__all__ = ["OutboxKit"]

T = TypeVar("T")
_MANY = 100_000
_UNSET: Any = object()


class OutboxKit:
    """A store, a frozen clock, and transports that accept everything until they are made to fail.

    Without arguments it is a memory store, and code publishes on `transaction()`. With `store`, a database that the
    code under test writes to, or its URL, the kit creates the tables if they are missing, and reads what is committed.
    With `connection` it reads through a connection or session of the test, in its transaction: what a test rolls back
    is seen too. Every method works in sync and in async tests, but an async `connection` needs the methods ending in
    `_async`.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        connection: object | None = None,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        types: Types = DEFAULT_TYPES,
        clock: FrozenClock | None = None,
    ) -> None:
        self.clock = clock or FrozenClock()
        self._connection = connection
        self._names = Names(schema, prefix)
        self._types = types
        if store is None:
            self.store: Store = MemoryStore(clock=self.clock)
        else:
            if connection is not None:
                raise TypeError("Give the kit a store or a connection, not both.")
            self.store = open_store(store, names=self._names) if isinstance(store, str) else store
            _install(self.store, store if isinstance(store, str) else None, self._names)
        self._transports: dict[str, MemoryTransport] = {}

    # --- writing ---

    def transaction(self) -> MemoryTransaction:
        """Open a transaction of the memory store: it commits at the end of its block, and rolls back on an error."""
        if self._connection is not None or not isinstance(self.store, MemoryStore):
            raise TypeError("This kit reads a database of yours; publish on your own connection or session.")
        return self.store.transaction()

    def advance(self, by: timedelta) -> datetime:
        """Let time pass, for what is deferred or retried."""
        return self.clock.advance(by)

    # --- assertions ---

    def messages(self, **conditions: Any) -> Sequence[Message]:
        """Return committed messages, open and closed, in order; conditions are those of `Selection`.

        With `connection` these are the open messages that its transaction sees, and conditions are fields of `Message`.
        """
        if self._connection is None:
            return _run(self._find(Selection(**conditions)))
        if writers.is_async(self._connection):
            raise TypeError("The kit's connection is async: await the method that ends in _async instead.")
        _flush(self._connection)
        rows = writers.execute(self._connection, ListOpen(names=self._names))
        return _select(cast("Sequence[Sequence[Any]]", rows), conditions)

    async def messages_async(self, **conditions: Any) -> Sequence[Message]:
        """Do the same as `messages`, in async code."""
        if self._connection is None:
            return await self._find(Selection(**conditions))
        if not writers.is_async(self._connection):
            return self.messages(**conditions)
        await _flush_async(self._connection)
        rows = await cast("Awaitable[Any]", writers.execute(self._connection, ListOpen(names=self._names)))
        return _select(rows, conditions)

    def published(self, what: type | str | None = None, **conditions: Any) -> list[Any]:
        """Return the events of a class or type name, decoded, in order; all of them without one."""
        name = self._find_name(what)
        return [self._decode(one) for one in self.messages(**conditions) if name in (None, one.type)]

    async def published_async(self, what: type | str | None = None, **conditions: Any) -> list[Any]:
        """Do the same as `published`, in async code."""
        name = self._find_name(what)
        return [self._decode(one) for one in await self.messages_async(**conditions) if name in (None, one.type)]

    def assert_published(
        self,
        what: type | str,
        *,
        count: int | None = None,
        key: str | None = _UNSET,
        topic: str = _UNSET,
        destination: str = _UNSET,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Any:
        """Assert that an event of this class or type name with these fields was published; return the first.

        Only the given fields are compared. With `count` it must be exactly that many.
        """
        __tracebackhide__ = True
        wanted = _Wanted(what, {"key": key, "topic": topic, "destination": destination}, headers, fields)
        return self._check_published(self.messages(), wanted, count)

    async def assert_published_async(
        self,
        what: type | str,
        *,
        count: int | None = None,
        key: str | None = _UNSET,
        topic: str = _UNSET,
        destination: str = _UNSET,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Any:
        """Do the same as `assert_published`, in async code."""
        __tracebackhide__ = True
        wanted = _Wanted(what, {"key": key, "topic": topic, "destination": destination}, headers, fields)
        return self._check_published(await self.messages_async(), wanted, count)

    def assert_not_published(self, what: type | str, **fields: Any) -> None:
        """Assert that no event of this class or type name with these fields was published."""
        __tracebackhide__ = True
        self._check_not_published(self.messages(), _Wanted(what, {}, None, fields))

    async def assert_not_published_async(self, what: type | str, **fields: Any) -> None:
        """Do the same as `assert_not_published`, in async code."""
        __tracebackhide__ = True
        self._check_not_published(await self.messages_async(), _Wanted(what, {}, None, fields))

    def _check_published(self, messages: Sequence[Message], wanted: _Wanted, count: int | None) -> Any:
        __tracebackhide__ = True
        found = self._match(messages, wanted)
        if count is None and found:
            return found[0]
        if count is not None and len(found) == count:
            return found[0] if found else None
        expected = "at least one" if count is None else str(count)
        raise AssertionError(
            f"{len(found)} of {wanted.describe()} were published, and {expected} should be.\n"
            f"{self._describe_published(messages)}"
        )

    def _check_not_published(self, messages: Sequence[Message], wanted: _Wanted) -> None:
        __tracebackhide__ = True
        found = self._match(messages, wanted)
        if found:
            raise AssertionError(
                f"{len(found)} of {wanted.describe()} were published, and none should be.\n"
                f"{self._describe_published(messages)}"
            )

    def _match(self, messages: Sequence[Message], wanted: _Wanted) -> list[Any]:
        name = self._find_name(wanted.what)
        return [
            event
            for message in messages
            if message.type == name
            and _matches(
                message,
                event := self._decode(message),
                attributes=wanted.given,
                headers=wanted.headers,
                fields=wanted.fields,
            )
        ]

    # --- delivering ---

    def transport(self, destination: str) -> MemoryTransport:
        """Return the transport of a destination: read `received`, or call `refuse_next`, `reject_next`, `go_down`, …"""
        if destination not in self._transports:
            self._transports[destination] = MemoryTransport()
        return self._transports[destination]

    def drain(self, *destinations: str) -> int:
        """Deliver all that is due, by a real relay, to these or to all destinations; return how many were accepted."""
        return _run(self.drain_async(*destinations))

    async def drain_async(self, *destinations: str) -> int:
        """Do the same as `drain`, in async code."""
        if self._connection is not None:
            raise TypeError("Nothing is committed on the kit's connection: to deliver, give the kit a store.")
        names = destinations or tuple(sorted({message.destination for message in await self._find(Selection())}))
        if not names:
            return 0
        before = sum(len(self.transport(name).received) for name in names)
        relay = Relay(
            self.store,
            [Destination(lambda name=name: self.transport(name), DestinationSettings(name=name)) for name in names],  # type: ignore[misc]
            settings=RelaySettings(service="test"),
            telemetry=Telemetry(),
        )
        await relay.run(once=True)
        return sum(len(self.transport(name).received) for name in names) - before

    async def _find(self, selection: Selection) -> Sequence[Message]:
        if isinstance(self.store, MemoryStore):
            return await self.store.find(selection, limit=_MANY)
        await self.store.open()
        try:
            return await self.store.find(selection, limit=_MANY)
        finally:
            await self.store.close()

    def _find_name(self, what: type | str | None) -> str | None:
        return self._types.get_by_class(what).name if isinstance(what, type) else what

    def _decode(self, message: Message) -> Any:
        try:
            return decode(message, types=self._types)
        except DecodeError:
            return message.payload

    def _describe_published(self, messages: Sequence[Message]) -> str:
        lines = [
            f"  {message.type} key={message.key!r} to {message.destination}: {self._decode(message)!r}"
            for message in messages
        ]
        return "Published was:\n" + "\n".join(lines) if lines else "Nothing was published."


class _Wanted(NamedTuple):
    """What a message is compared with."""

    what: type | str
    attributes: Mapping[str, Any]
    headers: Mapping[str, str] | None
    fields: Mapping[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in self.attributes.items() if value is not _UNSET}

    def describe(self) -> str:
        return f"{_name(self.what)} with {_format_fields({**self.given, **self.fields})}"


def _install(store: Store, url: str | None, names: Names) -> None:
    """Create the tables of a store that has none. A store of another package creates its own."""
    if isinstance(store, MemoryStore):
        return
    if url is None:
        database = getattr(store, "_database", None)
        path = getattr(database, "path", None)
        url = getattr(store, "_url", None) if path is None else f"sqlite:///{path}"
        names = getattr(store, "_names", names)
    if isinstance(url, str):
        _run(open_schema(url, names=names).install())


def _flush(handle: Any) -> None:
    """Have a session write what it has staged. A session at rest flushes nothing; a savepoint makes it write."""
    if hasattr(handle, "flush") and hasattr(handle, "begin_nested"):
        with handle.begin_nested():
            pass


async def _flush_async(handle: Any) -> None:
    if hasattr(handle, "flush") and hasattr(handle, "begin_nested"):
        async with handle.begin_nested():
            pass


def _select(rows: Sequence[Sequence[Any]], conditions: Mapping[str, Any]) -> list[Message]:
    messages = [stored_message_from_row([*row, State.PENDING.value]) for row in rows]
    return [one for one in messages if all(getattr(one, name) == value for name, value in conditions.items())]


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, from sync and async tests alike."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # The test's own loop is busy with the test: another thread has one to wait on.
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def _matches(
    message: Message,
    event: Any,
    *,
    attributes: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    fields: Mapping[str, Any],
) -> bool:
    if any(getattr(message, name) != value for name, value in attributes.items()):
        return False
    if headers is not None and not headers.items() <= message.headers.items():
        return False
    return all(_get_field(event, name) == value for name, value in fields.items())


def _get_field(event: Any, name: str) -> Any:
    return event.get(name, _UNSET) if isinstance(event, dict) else getattr(event, name, _UNSET)


def _name(what: type | str) -> str:
    return what if isinstance(what, str) else what.__qualname__


def _format_fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items()) or "any fields"
