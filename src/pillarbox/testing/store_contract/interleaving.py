"""Writers that serialise on their keys, and one reader, in a random order that a seed repeats."""

from __future__ import annotations

from contextlib import AsyncExitStack
from random import Random
from typing import Final

from pillarbox.message import Message
from pillarbox.protocols import Cursor, Selection
from pillarbox.testing.harness import HarnessTransaction, StoreHarness
from pillarbox.testing.samples import key_in, sample
from pillarbox.testing.store_contract.arrange import LANE, MANY, OTHER

__all__ = ["Interleaving"]

_WRITERS: Final = 4
_ENOUGH: Final = 200
_KEYS: Final = tuple(key_in(lane, nth=nth) for lane in (LANE, OTHER) for nth in range(3))


class Interleaving:
    """Takes random steps: open a transaction, write in one, end one, read. Remembers in which order each key came."""

    def __init__(self, harness: StoreHarness, *, seed: int) -> None:
        self._harness = harness
        self._random = Random(seed)  # noqa: S311 - a seed must repeat
        self._open: dict[str, HarnessTransaction] = {}
        self._cursor: Cursor | None = None
        self.read: dict[int, Message] = {}
        """Every message, in the order in which it was read first."""

    async def run(self, *, steps: int) -> None:
        """Take that many steps, end every transaction, and read what is left."""
        async with AsyncExitStack() as stack:
            for _ in range(steps):
                step = self._random.choice([self._begin, self._begin, self._write, self._write, self._end, self._look])
                await step(stack)
            while self._open:
                await self._end(stack)
        for _ in range(_ENOUGH):
            if not await self._read_on():
                break

    async def _begin(self, stack: AsyncExitStack) -> None:
        """One transaction per key at a time: that is what serialised writers are."""
        free = [key for key in _KEYS if key not in self._open]
        if free and len(self._open) < _WRITERS:
            transaction = await stack.enter_async_context(self._harness.open_transaction())
            self._open[self._random.choice(free)] = transaction
            await self._write(stack)

    async def _write(self, stack: AsyncExitStack) -> None:
        if self._open:
            key = self._random.choice(list(self._open))
            await self._open[key].insert([sample(key=key)])

    async def _end(self, stack: AsyncExitStack) -> None:
        if self._open:
            transaction = self._open.pop(self._random.choice(list(self._open)))
            await (transaction.rollback() if self._random.random() < 0.1 else transaction.commit())

    async def _look(self, stack: AsyncExitStack) -> None:
        if self._cursor is not None and self._random.random() < 0.03:
            self._cursor = self._cursor.restarted([self._random.choice([LANE, OTHER])])
        await self._read_on()

    async def _read_on(self) -> bool:
        """Whether there was anything."""
        lanes = [LANE, OTHER]
        self._random.shuffle(lanes)
        reading = await self._harness.store.read("orders", partitions=lanes, cursor=self._cursor, limit=20)
        self._cursor = reading.cursor
        for message in reading.messages:
            self.read.setdefault(message.id, message)
        return bool(reading.messages)

    def overtaken(self) -> list[tuple[str | None, int, int]]:
        """Key, id and later id, where the later one of the key was read first."""
        last: dict[str | None, int] = {}
        found = []
        for id, message in self.read.items():
            if last.get(message.key, 0) > id:
                found.append((message.key, id, last[message.key]))
            last[message.key] = max(id, last.get(message.key, 0))
        return found

    async def lost(self) -> set[int]:
        """Ids that were committed and never read."""
        return {message.id for message in await self._harness.store.find(Selection(), limit=MANY)} - self.read.keys()
