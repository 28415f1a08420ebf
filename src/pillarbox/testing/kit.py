"""An outbox for tests: assertions on what was published, deliveries, and failures; no server, no waiting.

def test_an_order_is_announced(outbox_kit: OutboxKit) -> None:
    with outbox_kit.transaction() as tx:
        place_order(tx, order_id="1")
    outbox_kit.assert_published(OrderPlaced, order_id="1")
    assert outbox_kit.drain("billing") == 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Selection, Store
from pillarbox.errors import DecodeError
from pillarbox.events import DEFAULT_TYPES, Types, decode
from pillarbox.message import Message
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from pillarbox.telemetry import Telemetry

__all__ = ["OutboxKit"]

T = TypeVar("T")
_MANY = 100_000
_UNSET: Any = object()


class OutboxKit:
    """A store, a frozen clock, and transports that accept everything until they are made to fail.

    Without `store` it is a memory store, and code publishes on `transaction()`. With `store`, a database that the code
    under test writes to, the kit reads that. Every method works in sync and in async tests.
    """

    def __init__(
        self, *, store: Store | None = None, types: Types = DEFAULT_TYPES, clock: FrozenClock | None = None
    ) -> None:
        self.clock = clock or FrozenClock()
        self.store: Store = MemoryStore(clock=self.clock) if store is None else store
        self._types = types
        self._transports: dict[str, MemoryTransport] = {}

    # --- writing ---

    def transaction(self) -> MemoryTransaction:
        """Open a transaction of the memory store: it commits at the end of its block, and rolls back on an error."""
        if not isinstance(self.store, MemoryStore):
            raise TypeError("This kit reads a store of yours; publish on your own connection or session.")
        return self.store.transaction()

    def advance(self, by: timedelta) -> datetime:
        """Let time pass, for what is deferred or retried."""
        return self.clock.advance(by)

    # --- assertions ---

    def messages(self, **conditions: Any) -> Sequence[Message]:
        """Return committed messages, open and closed, in order; conditions are those of `Selection`."""
        return _run(self._find(Selection(**conditions)))

    def published(self, what: type | str | None = None, **conditions: Any) -> list[Any]:
        """Return the events of a class or type name, decoded, in order; all of them without one."""
        return [self._decode(message) for message in self._find_type(what, conditions)]

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
        given = {"key": key, "topic": topic, "destination": destination}
        attributes = {name: value for name, value in given.items() if value is not _UNSET}
        found = [
            event
            for message in self._find_type(what, {})
            if _matches(message, event := self._decode(message), attributes=attributes, headers=headers, fields=fields)
        ]
        if count is None and found:
            return found[0]
        if count is not None and len(found) == count:
            return found[0] if found else None
        expected = "at least one" if count is None else str(count)
        raise AssertionError(
            f"{len(found)} of {_name(what)} with {_format_fields({**attributes, **fields})} were published, "
            f"and {expected} should be.\n{self._describe_published()}"
        )

    def assert_not_published(self, what: type | str, **fields: Any) -> None:
        """Assert that no event of this class or type name with these fields was published."""
        found = [
            message
            for message in self._find_type(what, {})
            if _matches(message, self._decode(message), attributes={}, headers=None, fields=fields)
        ]
        if found:
            raise AssertionError(
                f"{len(found)} of {_name(what)} with {_format_fields(fields)} were published, and none should be.\n"
                f"{self._describe_published()}"
            )

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

    def _find_type(self, what: type | str | None, conditions: dict[str, Any]) -> Sequence[Message]:
        name = self._types.get_by_class(what).name if isinstance(what, type) else what
        return self.messages(**conditions, **({} if name is None else {"type": name}))

    def _decode(self, message: Message) -> Any:
        try:
            return decode(message, types=self._types)
        except DecodeError:
            return message.payload

    def _describe_published(self) -> str:
        lines = [
            f"  {message.type} key={message.key!r} to {message.destination}: {self._decode(message)!r}"
            for message in self.messages()
        ]
        return "Published was:\n" + "\n".join(lines) if lines else "Nothing was published."


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
