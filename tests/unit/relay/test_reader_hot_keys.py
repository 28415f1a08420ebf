"""Reading a hot key where the store can skip it: in shares, in order, whatever fails or is decided meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Cursor, FailedOutcome, ReadResult, Selection
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.reader import Reader
from pillarbox.stores.memory import MemoryStore
from tests.support.lanes.destination_bench import build_state, grant, put

WINDOW = 16
"""An eighth of it is one key's share."""
ROUNDS = 40


class _Reads(MemoryStore):
    """Remembers which keys were skipped in lanes that were read from their start; some reads of a lane can fail."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.skipped_anew: list[Sequence[str]] = []
        self.failures = 0

    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        marks = cursor or Cursor()
        if self.failures and marks.snapshot is None and marks.low:
            self.failures -= 1
            raise StoreUnavailable("the line broke")
        if any(partition not in marks.low for partition in partitions):
            self.skipped_anew.append(marks.skip)
        return await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)


class _Place:
    """One lane with a hot key in it, and a relay that reads it round by round."""

    def __init__(self, *keys: str, window: int) -> None:
        self.clock = FrozenClock()
        self.store = _Reads(self.clock)
        self.state = build_state(self.store, self.clock, window=window, batch=100)
        self.sent: list[int] = []
        put(self.store, *keys)
        backoff = PollBackoff(poll_interval=timedelta(seconds=1))
        self._reader = Reader(self.state, transport=MemoryTransport(), backoff=backoff)

    async def read(self) -> None:
        """Read and claim once."""
        await self._reader.run_once()
        await self._reader.finish()

    async def round(self, *, hold: bool = False) -> None:
        """Read, send and settle once. What is sent is delivered, or held."""
        await self.read()
        for message in self.state.ordering.next_batch(100):
            self.sent.append(message.id)
            if hold:
                self.state.ordering.mark_failed(message, _held(message))
            else:
                self.state.ordering.mark_delivered([message])
        await self.settle()

    async def settle(self) -> None:
        settlement, lanes = self.state.ordering.next_settlement(100)
        await self.store.settle(self.state.fence(lanes), settlement)
        self.state.ordering.confirm_settlement(settlement)

    async def rounds(self) -> list[int]:
        """So many that everything should be gone. Answers what went."""
        before = len(self.sent)
        for _ in range(ROUNDS):
            await self.round()
        return self.sent[before:]

    def later(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.state.lease.extend(self.clock.monotonic())

    async def parked(self) -> list[int]:
        return [row.id for row in await self.store.find(Selection(), limit=1_000) if row.waits is Waits.PARKED]


def _held(message: Message) -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=1)


async def _place(*keys: str, window: int = WINDOW) -> _Place:
    place = _Place(*keys, window=window)
    await grant(place.state, 0)
    return place


async def test_a_hot_key_goes_in_shares_and_in_order_and_nothing_of_it_is_parked() -> None:
    place = await _place(*["hot"] * 30)
    await place.round()
    assert place.state.ordering.hot_keys == ["hot"]
    assert await place.parked() == []
    await place.rounds()
    assert place.sent == list(range(1, 31))


async def test_what_went_back_of_a_hot_key_is_read_again_before_the_rest() -> None:
    place = await _place(*["hot"] * 20)
    await place.read()
    place.state.ordering.close()
    await place.settle()
    place.state.ordering.reopen()
    assert await place.rounds() == list(range(1, 21))


async def test_a_lane_that_cannot_be_read_for_a_hot_key_is_read_for_it_again() -> None:
    place = await _place(*["hot", "warm"] * 10)
    await place.round()
    place.store.failures = 1
    await place.rounds()
    assert place.store.failures == 0
    assert sorted(place.sent) == list(range(1, 21)), "of the other key too, whose turn it was in the same round"


async def test_the_rest_of_a_hot_key_goes_when_a_person_discards_its_held_front() -> None:
    """Nothing of it is parked, so the table does not name the key any more: only that tells that it is free."""
    place = await _place(*["hot"] * 20, window=8)
    await place.round(hold=True)
    assert await place.rounds() == []
    await place.store.discard(Selection(ids=[1]), by="a person", reason="unwanted", limit=1)
    place.later(5)
    assert await place.rounds() == list(range(2, 21))


async def test_a_lane_that_is_read_from_its_start_as_a_safety_net_is_read_whole() -> None:
    place = await _place(*["hot"] * 20)
    await place.round()
    assert place.state.ordering.hot_keys == ["hot"]
    place.store.skipped_anew.clear()
    place.later(10)
    await place.round()
    assert place.store.skipped_anew == [[]]
