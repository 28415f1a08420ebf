"""The harness of the memory store: the shortest example of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Literal

from msgspec.structs import replace

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Store
from pillarbox.contracts.writer import Accept, Fail, Insert, Start
from pillarbox.message import Message, Names
from pillarbox.stores.memory import InboxRow, MemoryData, MemoryStore, MemoryTransaction
from pillarbox.testing.harness import HarnessTransaction, StoreHarness

__all__ = ["MemoryHarness", "build_inbox_failure"]


def build_inbox_failure(names: Names, consumer: str, message_id: str, error: str, content: bytes | None) -> Fail:
    """Build the record of a message of the source /shop that failed after 3 attempts."""
    return Fail(
        names=names, consumer=consumer, source="/shop", message_id=message_id, attempts=3, error=error, message=content
    )


class _Transaction:
    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction
        self.ended = False

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        self._transaction.insert(Insert(names=Names(), messages=messages, delay=delay))

    async def commit(self) -> None:
        self.ended = True
        self._transaction.commit()

    async def rollback(self) -> None:
        self.ended = True
        self._transaction.rollback()


class MemoryHarness(StoreHarness):
    """A new memory store, whose rows are messages: a spoiled one is marked.

    `make` may build a variant of it, and `make_data` a variant of its tables.
    """

    faults = ("spoiled",)
    shows_raw = False

    def __init__(
        self,
        make: Callable[..., MemoryStore] = MemoryStore,
        *,
        make_data: Callable[[], MemoryData] = MemoryData,
    ) -> None:
        self.clock = FrozenClock()
        self._make = make
        self._data = make_data()
        self._memory = make(self._data, clock=self.clock)
        self.store: Store = self._memory

    def open_transaction(self) -> AbstractAsyncContextManager[HarnessTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[HarnessTransaction]:
        transaction = _Transaction(self._memory.transaction())
        try:
            yield transaction
        finally:
            if not transaction.ended:
                await transaction.rollback()

    async def insert_spoiled(self, message: Message, *faults: str) -> bool:
        await self.insert([replace(message, unreadable=f"unreadable row: {', '.join(faults)}")])
        return True

    async def open_second(self) -> Store:
        return self._make(self._data, clock=self.clock)

    async def restart(self) -> Store:
        return self._make(self._data, clock=self.clock)

    async def open_with_keep(self, keep: Literal["full", "no-payload", "off"]) -> Store:
        return self._make(self._data, clock=self.clock, keep=keep)

    async def accept(self, consumer: str, source: str, message_id: str) -> bool:
        with self._memory.transaction() as transaction:
            return bool(
                transaction.execute(Accept(names=Names(), consumer=consumer, source=source, message_id=message_id))
            )

    async def fail_inbox(
        self, consumer: str, message_id: str, *, error: str = "ValueError: no", content: bytes | None
    ) -> None:
        with self._memory.transaction() as transaction:
            transaction.execute(build_inbox_failure(Names(), consumer, message_id, error, content))

    async def start_inbox(self, consumer: str, message_id: str) -> int:
        with self._memory.transaction() as transaction:
            start = Start(names=Names(), consumer=consumer, source="/shop", message_id=message_id)
            return int(transaction.execute(start))

    async def leave_started(self, consumer: str, source: str, message_id: str) -> None:
        self._data.inbox[consumer, source, message_id] = InboxRow("started", self.clock.now())
