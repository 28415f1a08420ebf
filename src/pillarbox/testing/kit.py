"""An outbox for tests: what was published and delivered, and every way to fail; no server, no waiting.

def test_an_order_is_announced(outbox_kit: OutboxKit) -> None:
    with outbox_kit.transaction() as tx:
        place_order(tx, order_id="1")
    outbox_kit.assert_published(OrderPlaced, order_id="1")
    assert outbox_kit.drain("billing") == 1
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pillarbox.clock import FrozenClock
from pillarbox.codec import decode
from pillarbox.errors import DecodeError
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.message import Message
from pillarbox.protocols import Selection, Store
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from pillarbox.telemetry import Telemetry
from pillarbox.transports.memory import MemoryTransport

__all__ = ["OutboxKit"]

T = TypeVar("T")
_MANY = 100_000
_UNSET: Any = object()


class OutboxKit:
    """A store, a clock that stands still, and transports that take everything until told otherwise.

    Without `store` it is the memory store, and `transaction()` gives what to publish on. With another one, a real
    database that the code under test writes to, it reads that. Every method works in sync and in async tests.
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
        """A transaction of the memory store: commits at the end of its block, rolls back when it raises."""
        if not isinstance(self.store, MemoryStore):
            raise TypeError("This kit reads a store of yours; publish on your own connection or session.")
        return self.store.transaction()

    def advance(self, by: timedelta) -> datetime:
        """Let time pass, for what is deferred or retried."""
        return self.clock.advance(by)

    # --- looking ---

    def messages(self, **conditions: Any) -> Sequence[Message]:
        """What is committed, open and closed, in order; conditions are those of `Selection`."""
        return _answer(self._asked(Selection(**conditions)))

    def published(self, what: type | str | None = None, **conditions: Any) -> list[Any]:
        """The events of a class or type name, decoded, in order; of all without one."""
        return [self._event(message) for message in self._of(what, conditions)]

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
        """That an event of this class or type name with these fields was published; returns the first.

        Only what is given is compared. `count` asks for exactly so many.
        """
        given = {"key": key, "topic": topic, "destination": destination}
        wanted = {name: value for name, value in given.items() if value is not _UNSET}
        found = [
            event
            for message in self._of(what, {})
            if _fits(message, event := self._event(message), wanted=wanted, headers=headers, fields=fields)
        ]
        if count is None and found:
            return found[0]
        if count is not None and len(found) == count:
            return found[0] if found else None
        asked = "at least one" if count is None else str(count)
        raise AssertionError(
            f"{len(found)} of {_name(what)} with {_shown({**wanted, **fields})} were published, "
            f"and {asked} should be.\n{self._all()}"
        )

    def assert_not_published(self, what: type | str, **fields: Any) -> None:
        """That no event of this class or type name with these fields was published."""
        found = [
            message
            for message in self._of(what, {})
            if _fits(message, self._event(message), wanted={}, headers=None, fields=fields)
        ]
        if found:
            raise AssertionError(
                f"{len(found)} of {_name(what)} with {_shown(fields)} were published, and none should be.\n"
                f"{self._all()}"
            )

    # --- delivering ---

    def transport(self, destination: str) -> MemoryTransport:
        """Where messages for this destination go: `received`, and `refuse_next`, `reject_next`, `go_down`, …"""
        if destination not in self._transports:
            self._transports[destination] = MemoryTransport()
        return self._transports[destination]

    def drain(self, *destinations: str) -> int:
        """Deliver all that is due now, by a real relay; how many were taken. Without names, to every destination."""
        return _answer(self.drain_async(*destinations))

    async def drain_async(self, *destinations: str) -> int:
        """`drain`, to be awaited."""
        names = destinations or tuple(sorted({message.destination for message in await self._asked(Selection())}))
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

    # --- within ---

    async def _asked(self, selection: Selection) -> Sequence[Message]:
        if isinstance(self.store, MemoryStore):
            return await self.store.find(selection, limit=_MANY)
        await self.store.open()
        try:
            return await self.store.find(selection, limit=_MANY)
        finally:
            await self.store.close()

    def _of(self, what: type | str | None, conditions: dict[str, Any]) -> Sequence[Message]:
        name = self._types.of(what).name if isinstance(what, type) else what
        return self.messages(**conditions, **({} if name is None else {"type": name}))

    def _event(self, message: Message) -> Any:
        try:
            return decode(message, types=self._types)
        except DecodeError:
            return message.payload

    def _all(self) -> str:
        lines = [
            f"  {message.type} key={message.key!r} to {message.destination}: {self._event(message)!r}"
            for message in self.messages()
        ]
        return "Published was:\n" + "\n".join(lines) if lines else "Nothing was published."


def _answer(ask: Coroutine[Any, Any, T]) -> T:
    """The answer, from sync and async tests alike: a loop that runs cannot be waited for, so another thread asks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(ask)
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(asyncio.run(ask))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _fits(
    message: Message,
    event: Any,
    *,
    wanted: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    fields: Mapping[str, Any],
) -> bool:
    if any(getattr(message, name) != value for name, value in wanted.items()):
        return False
    if headers is not None and not headers.items() <= message.headers.items():
        return False
    return all(_field(event, name) == value for name, value in fields.items())


def _field(event: Any, name: str) -> Any:
    return event.get(name, _UNSET) if isinstance(event, dict) else getattr(event, name, _UNSET)


def _name(what: type | str) -> str:
    return what if isinstance(what, str) else what.__qualname__


def _shown(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items()) or "any fields"
