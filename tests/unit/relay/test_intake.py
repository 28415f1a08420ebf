"""Rounds of reading: what a failure leaves to be done, and when there is nothing left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from pillarbox.clock import FrozenClock
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Claim, Cursor, Inherited, Reading, Settlement, Trouble
from pillarbox.relay.intake import Intake
from pillarbox.relay.wake import Sleeper
from pillarbox.relay.work import Work
from pillarbox.stores.memory import MemoryStore
from pillarbox.transports.memory import MemoryTransport
from tests.unit.relay.work_bench import SINK, grant, put, work_on


class _Flaky(MemoryStore):
    """Remembers which keys were asked for; the first question is not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        self.asked.append(key)
        if len(self.asked) == 1:
            raise StoreUnavailable("the line broke")
        return await super().read_key(destination, partition=partition, key=key, after=after, limit=limit)


class _Busy(MemoryStore):
    """Something else happens while it reads for the first time."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return reading


def _intake(work: Work) -> Intake:
    return Intake(work, transport=MemoryTransport(), sleeper=Sleeper(poll_interval=timedelta(seconds=1)))


async def _settle(work: Work) -> None:
    settlement, lanes = work.core.settlement(10)
    await work.store.settle(work.fence(lanes), settlement)
    work.core.settled(settlement)


async def test_a_key_that_could_not_be_read_keeps_no_other_key_from_being_read() -> None:
    """Whoever was to be read after it is still wanted: they would be parked for ever otherwise."""
    store, clock = _Flaky(), FrozenClock()
    work = work_on(store, clock)
    await grant(work, 0)
    for key in ("a", "b", "c"):
        work.core.block(0, key, front=Waits.PARKED)
    intake = _intake(work)
    for _ in range(3):
        await intake.run_once()
    await intake.finish()
    assert sorted(store.asked) == ["a", "a", "b", "c"]


async def _inherited(work: Work) -> Inherited:
    """A message that is to be tried again now, from a relay that died with it in hand."""
    dead = work_on(_same(work), FrozenClock())
    await grant(dead, 0)
    fence, now = dead.fence([0]), timedelta(0)
    retry = Trouble(message_id=1, state=State.PENDING, waits=Waits.RETRY, attempts=1, error="refused", delay=now)
    await dead.store.settle(fence, Settlement(troubles=[retry]))
    await dead.store.claim(fence, Claim(1, [1]))
    lanes, (inherited,) = await work.store.take(
        work.standing.relay_id, SINK, partitions=[0], lease=timedelta(seconds=10), claim_number=1
    )
    work.epochs[0] = lanes[0].epoch
    work.core.grant(0)
    return inherited


def _same(work: Work) -> MemoryStore:
    assert isinstance(work.store, MemoryStore)
    return work.store


async def test_there_is_something_left_while_what_was_inherited_is_due() -> None:
    """It goes back while the other lanes are read, and can be taken in the round after the next."""
    clock = FrozenClock()
    store = _Busy(clock)
    put(store, "a")
    work = work_on(store, clock)
    inherited = await _inherited(work)
    await grant(work, 1)
    work.core.inherit(inherited.claim.number, inherited.messages, strikes=1)
    store.meanwhile = lambda: _settle(work)
    intake, empty = _intake(work), list[int]()
    while not work.core.has_ready:
        await intake.run_once()
        await intake.finish()
        empty.append(intake.empty_rounds)
        assert len(empty) < 10, "it is never taken"
    assert max(empty) < 2
