"""The harness of the store contract: an author writes one for his store."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Store
from pillarbox.message import Message

__all__ = ["HarnessTakeover", "HarnessTransaction", "StoreHarness"]


class HarnessTransaction(Protocol):
    """A transaction of the store's own write path, held open by a test."""

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        """Write the messages, in order, without committing."""

    async def commit(self) -> None:
        """Commit, once."""

    async def rollback(self) -> None:
        """Roll back, once."""


class HarnessTakeover(Protocol):
    """A takeover of one lane that has written the new owner, held open by a test."""

    async def wait_for(self, call: asyncio.Task[Any]) -> None:
        """Return as soon as a call of the store waits for this takeover, or has ended without waiting."""

    async def commit(self) -> None:
        """Commit, once."""


class StoreHarness(ABC):
    """One opened, empty store, and access to its data beside it. Closes every store it opened when its fixture ends.

    `clock` is the store's clock. Where the database stamps inserted rows itself, freeze it at the real time: the
    contract takes the times of an insert from the store and compares all later ones exactly.
    """

    store: Store
    clock: FrozenClock
    faults: Sequence[str] = ()
    """Ways in which `insert_spoiled` can spoil a row, by name. The first leaves its key and its lane as they are."""
    refused_faults: Sequence[str] = ()
    """Others, with which the database refuses a row: no relay would ever read it, or the check is cheap."""
    wakes: bool = True
    """The store tells a relay of a commit. False for one that is only polled."""
    shows_raw: bool = True
    """A message shows what stands in the columns that cannot be read."""

    @abstractmethod
    def open_transaction(self) -> AbstractAsyncContextManager[HarnessTransaction]:
        """Open a transaction that is rolled back at the end of the block unless it was ended before.

        Several are open at once only where the store's features say `late_rows`.
        """

    def open_takeover(
        self, relay_id: UUID, destination: str, partition: int
    ) -> AbstractAsyncContextManager[HarnessTakeover]:
        """Open a transaction of its own that writes this owner and the next epoch into a lane, as `take` does.

        It is rolled back at the end of the block unless it was committed before.
        """
        pytest.skip("No call of this store can be open beside another.")

    @abstractmethod
    async def open_second(self) -> Store:
        """Open another store over the same data and clock, with connections of its own."""

    @abstractmethod
    async def restart(self) -> Store:
        """Return the store as after a crash: a new one over the same data; the old one was never closed."""

    @abstractmethod
    async def accept(self, consumer: str, source: str, message_id: str) -> bool:
        """Accept a message into the inbox, and commit; return whether it was new."""

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        """Commit the messages, in one transaction."""
        async with self.open_transaction() as transaction:
            await transaction.insert(messages, delay=delay)
            await transaction.commit()

    async def insert_spoiled(self, message: Message, *faults: str) -> bool:
        """Commit the row of a message with these faults, by plain SQL and with no more rights than a writer has.

        Return False where the database itself refuses the row.
        """
        pytest.skip(f"This store has no way to spoil a row: {faults}.")

    async def insert_random(self, message: Message, dice: random.Random) -> bool:
        """Commit the row of a message with random values in some columns, as `insert_spoiled` does.

        The values may happen to be those of a message. What waits in it must be due, or wait behind another message.
        """
        return await self.insert_spoiled(message, dice.choice(self.faults))

    async def open_with_keep(self, keep: Literal["full", "no-payload", "off"]) -> Store:
        """Open another store over the same data that keeps this much of a delivered message."""
        pytest.skip(f"This store has no way to keep {keep}.")

    async def fail_inbox(
        self, consumer: str, message_id: str, *, error: str = "ValueError: no", content: bytes | None
    ) -> None:
        """Leave a failed message of the source /shop in a consumer's inbox, after 3 attempts."""
        pytest.skip("This store has no inbox records that failed.")

    async def start_inbox(self, consumer: str, message_id: str) -> int:
        """Start a message of the source /shop, and commit; return how often it was started without an end."""
        pytest.skip("This store has no inbox records that are not done.")

    async def leave_started(self, consumer: str, source: str, message_id: str) -> None:
        """Leave an inbox record behind that was started and never done, as old as the clock says."""
        pytest.skip("This store has no inbox records that are not done.")
