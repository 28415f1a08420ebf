"""Rounds of the reader: what a failed read leaves to do, when nothing is left, and the safety net."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import (
    Claim,
    Cursor,
    DueMessage,
    FailedOutcome,
    Fence,
    KeyMessages,
    ReadResult,
    RecoveredClaim,
    Selection,
    Settlement,
)
from pillarbox.contracts.transport import TransportFeatures
from pillarbox.contracts.writer import Insert
from pillarbox.errors import StoreRefused, StoreUnavailable, TransportUnavailable
from pillarbox.message import Kind, Message, Names, State, Waits
from pillarbox.relay.destination import ASIDE_INTERVAL, DestinationState
from pillarbox.relay.lease import Lease
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.pipeline import Settler
from pillarbox.relay.polling import PollBackoff
from pillarbox.relay.reader import Reader, _strikes_while_waiting
from pillarbox.relay.sender import Sender
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import DEFAULT_RETRY
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import sample_relay
from tests.support.lanes.destination_bench import LEASE, SINK, build_state, claim_next, grant, put

# --- failed and empty rounds ---


class _Flaky(MemoryStore):
    """Remembers which keys were asked for; the first question is not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def read_keys(
        self, destination: str, keys: Sequence[tuple[int, str]], **limits: Any
    ) -> Sequence[KeyMessages]:
        self.asked.append([key for _, key in keys])
        if len(self.asked) == 1:
            raise StoreUnavailable("the line broke")
        return await super().read_keys(destination, keys, **limits)


class _Busy(MemoryStore):
    """Something else happens while it reads for the first time."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return reading


def _reader(state: DestinationState, transport: MemoryTransport | None = None) -> Reader:
    return Reader(
        state, transport=transport or MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1))
    )


async def _settle(state: DestinationState) -> None:
    settlement, lanes = state.ordering.next_settlement(10)
    await state.store.settle(state.fence(lanes), settlement)
    state.ordering.confirm_settlement(settlement)


async def test_a_key_that_could_not_be_read_keeps_no_other_key_from_being_read() -> None:
    """Whoever was to be read after it is still wanted: they would be parked for ever otherwise."""
    store, clock = _Flaky(), FrozenClock()
    state = build_state(store, clock)
    await grant(state, 0)
    for key in ("a", "b", "c"):
        state.ordering.block(0, key, front=Waits.PARKED)
    reader = _reader(state)
    for _ in range(3):
        await reader.run_once()
    await reader.finish()
    assert store.asked == [["a", "b", "c"]] * 2


async def test_keys_that_are_none_wait_until_the_window_has_room() -> None:
    """A read without room would have a limit of nothing, or below it, which a database refuses."""
    limits: list[int] = []

    class Noting(MemoryStore):
        async def read_keys(self, destination: str, keys: Sequence[tuple[int, str]], **options: Any) -> Any:
            limits.append(options["limit"])
            return await super().read_keys(destination, keys, **options)

    store, clock = Noting(), FrozenClock()
    state = build_state(store, clock, window=1)
    await grant(state, 0)
    put(store, "a")
    await claim_next(state)
    state.ordering.note_astray(0, "odd")
    reader = _reader(state)
    assert not await reader._read_astray()
    assert limits == []
    state.ordering.mark_delivered(state.ordering.next_batch(1))
    await _settle(state)
    await reader._read_astray()
    assert limits == [1]


class _Away(MemoryStore):
    """Does not answer the first call of one kind."""

    def __init__(self, clock: FrozenClock, *, call: str) -> None:
        super().__init__(clock=clock)
        self._call: str | None = call

    def _break(self, call: str) -> None:
        if call == self._call:
            self._call = None
            raise StoreUnavailable("the line broke")

    async def blocked_keys(self, *arguments: Any, **options: Any) -> Any:
        self._break("blocked_keys")
        return await super().blocked_keys(*arguments, **options)

    async def read(self, *arguments: Any, **options: Any) -> ReadResult:
        self._break("read")
        return await super().read(*arguments, **options)


async def test_nothing_is_read_before_the_blocked_keys_are_known_though_the_first_question_failed() -> None:
    """A message that waits for its next attempt would be overtaken by the later ones of its key."""
    clock = FrozenClock()
    store = _Away(clock, call="blocked_keys")
    put(store, "a", "a")
    state = build_state(store, clock)
    await grant(state, 0)
    await store.settle(state.fence([0]), Settlement(failures=[_build_retry(1, delay=timedelta(hours=1))]))
    state.ordering.must_read_blocked = True
    assert await _send_all(_reader(state), state) == []


async def test_what_comes_back_after_a_read_that_failed_is_taken_again() -> None:
    """What was given back while a read is under way is not taken from it. A read that failed is over."""
    clock = FrozenClock()
    store = _Away(clock, call="read")
    put(store, "a")
    state = build_state(store, clock)
    await grant(state, 0)
    reader = _reader(state)
    for _ in range(3):
        await reader.run_once()
        await reader.finish()
    batch = state.ordering.next_batch(1)
    assert [message.id for message in batch] == [1]
    state.ordering.mark_failed(batch[0], _build_retry(1, delay=timedelta(0), attempts=1))
    await _settle(state)
    clock.advance(timedelta(seconds=2))
    state.lease.extend(clock.monotonic())
    assert await _send_all(reader, state) == [1]


# --- writes that were refused ---


async def _take_unparked() -> tuple[DestinationState, Reader, Message]:
    """Return a message of a lane that is to be parked, and the reader that is to do it."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a")
    state = build_state(store, clock)
    await grant(state, 0)
    (message,) = await store.find(Selection(), limit=1)
    return state, _reader(state), message


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_message_of_a_lane_that_was_lost_meanwhile_is_not_parked_again(is_same: bool) -> None:
    state, reader, message = await _take_unparked()
    reader._unparked = [(message, state.epochs[0] - (0 if is_same else 1))]
    await reader._park_again()
    await reader.finish()
    (left,) = await state.store.find(Selection(), limit=1)
    assert left.waits is (Waits.PARKED if is_same else None)


class _LosesCommits(MemoryStore):
    """Loses the messages between their read and their claim, and gives their ids to others without a key."""

    refuses = False

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        for id_ in park:
            row = self._data.open.get(id_)
            assert row is not None
            self._data.open.put(msgspec.structs.replace(row, message_id=UUID(int=70 + id_), key=None))
        if self.refuses and park:
            raise StoreRefused("no")
        return await super().claim(fence, claim, park=park)


@pytest.mark.parametrize("refuses", [False, True])
async def test_another_message_that_got_the_id_of_one_to_park_is_left_alone(refuses: bool) -> None:
    """Nothing is in front of it, so nobody would read it again; and it is not the one that could not be parked."""
    clock = FrozenClock()
    store = _LosesCommits(clock=clock)
    store.refuses = refuses
    put(store, "a")
    state = build_state(store, clock)
    await grant(state, 0)
    state.ordering.block(0, "a", front=Waits.HELD)
    reader = _reader(state)
    await reader.run_once()
    await reader.finish()
    (other,) = await store.find(Selection(), limit=9)
    assert (other.message_id, other.state, other.waits) == (UUID(int=71), State.PENDING, None)


class _RefusesRetries(MemoryStore):
    """Refuses for good to record that a message is to be tried again."""

    is_armed = False

    async def settle(self, fence: Fence, settlement: Settlement) -> Any:
        if self.is_armed and any(failure.waits is Waits.RETRY for failure in settlement.failures):
            raise StoreRefused("no")
        return await super().settle(fence, settlement)


async def test_what_waits_behind_a_retry_goes_when_the_next_retry_could_not_be_recorded() -> None:
    """The first of the key is closed as failed then, and nothing of it waits in the table any more."""
    clock = FrozenClock()
    store = _RefusesRetries(clock=clock)
    put(store, "a", "a")
    state = build_state(store, clock)
    await grant(state, 0)
    parked = FailedOutcome(message_id=2, state=State.PENDING, waits=Waits.PARKED)
    await store.settle(state.fence([0]), Settlement(failures=[_build_retry(1, delay=timedelta(0)), parked]))
    state.ordering.must_read_blocked = True
    store.is_armed = True
    reader, settler, sent = _reader(state), Settler(state), list[int]()
    for _ in range(10):
        await reader.run_once()
        await reader.finish()
        for message in state.ordering.next_batch(10):
            sent.append(message.id)
            if message.id == 1:
                state.ordering.mark_failed(message, _build_retry(1, delay=timedelta(hours=1), attempts=1))
            else:
                state.ordering.mark_delivered([message])
        await settler.run_once()
    assert sent == [1, 2]
    assert [one.state for one in await store.find(Selection(), limit=10)] == [State.FAILED, State.DELIVERED]


async def _inherited(state: DestinationState) -> RecoveredClaim:
    """A message that is to be tried again now, from a relay that died with it in hand."""
    dead = build_state(_same(state), FrozenClock())
    await grant(dead, 0)
    fence, now = dead.fence([0]), timedelta(0)
    retry = FailedOutcome(message_id=1, state=State.PENDING, waits=Waits.RETRY, attempts=1, error="refused", delay=now)
    await dead.store.settle(fence, Settlement(failures=[retry]))
    await dead.store.claim(fence, Claim(1, [1]))
    await state.store.register(sample_relay(relay_id=state.lease.relay_id, destination=SINK), lease=timedelta(0))
    lanes, (inherited,) = await state.store.take(
        state.lease.relay_id, SINK, partitions=[0], lease=timedelta(seconds=10), claim_number=1
    )
    state.epochs[0] = lanes[0].epoch
    state.ordering.grant(0)
    return inherited


def _same(state: DestinationState) -> MemoryStore:
    assert isinstance(state.store, MemoryStore)
    return state.store


async def test_there_is_something_left_while_what_was_inherited_is_due() -> None:
    """It goes back while the other lanes are read, and can be taken in the round after the next."""
    clock = FrozenClock()
    store = _Busy(clock)
    put(store, "a")
    state = build_state(store, clock)
    inherited = await _inherited(state)
    await grant(state, 1)
    state.ordering.recover_claim(inherited.claim.number, inherited.messages, strikes=1)
    store.meanwhile = lambda: _settle(state)
    reader, empty = _reader(state), list[int]()
    while not state.ordering.has_ready:
        await reader.run_once()
        await reader.finish()
        empty.append(reader.empty_rounds)
        assert len(empty) < 10, "it is never taken"
    assert max(empty) < 2


async def test_messages_with_other_strikes_are_claimed_apart() -> None:
    """A death counts against what is in one claim: a message that may be deadly must not mark its neighbours."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, "a", "b", "c")
    state = build_state(store, clock)
    await grant(state, 0)
    struck = await claim_next(state)
    state.ordering.next_batch(1)
    state.ordering.add_strikes(struck)
    state.ordering.mark_returned(struck)
    await _settle(state)
    reader = _reader(state)
    await reader.run_once()
    await reader.finish()
    claims = await store.claims(older_than=timedelta(0))
    assert sorted((claim.strikes, list(claim.message_ids)) for claim in claims) == [(0, [2, 3]), (1, [1])]


# --- priority ---


@pytest.mark.parametrize(("sends_first", "first"), [(True, "fresh"), (False, "due")])
async def test_the_first_duty_gets_the_room_and_the_other_its_turn(sends_first: bool, first: str) -> None:
    """The window has room for two, and there is always more of both."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, *[f"due-{number}" for number in range(30)], *[f"fresh-{number}" for number in range(60)])
    state = build_state(store, clock, window=2, batch=2)
    await grant(state, 0)
    retries = [
        FailedOutcome(message_id=id, state=State.PENDING, waits=Waits.RETRY, attempts=1, delay=timedelta(0))
        for id in range(1, 31)
    ]
    await store.settle(state.fence([0]), Settlement(failures=retries))
    reader = Reader(
        state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)),
        retry_interval=timedelta(microseconds=1), sends_first=sends_first,
    )  # fmt: skip
    taken: list[str] = []
    for _ in range(18 if sends_first else 40):
        if not sends_first:
            state.lease.extend(clock.monotonic())
        await reader.run_once()
        await reader.finish()
        batch = state.ordering.next_batch(10)
        taken += [(message.key or "").split("-")[0] for message in batch]
        state.ordering.mark_delivered(batch)
        await _settle(state)
        clock.advance(timedelta(seconds=1))
    if not sends_first:
        assert taken[:40] == ["due"] * 30 + ["fresh"] * 10, "new messages go once no retry is due"
        return
    later = taken[4:]
    assert later.count(first) > 3 * (len(later) - later.count(first))
    assert set(later) == {"due", "fresh"}


async def _read_beside_endless_retries(*, seconds: float) -> list[int]:
    """Read a backlog of retries that goes on for that long, beside one new message; return what was taken."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, *[f"due-{number}" for number in range(200)], "fresh")
    state = build_state(store, clock, window=2, batch=2)
    await grant(state, 0)
    await _retry_now(store, state, *range(1, 201))
    reader = Reader(
        state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)),
        retry_interval=timedelta(microseconds=1), sends_first=False,
    )  # fmt: skip
    taken: list[int] = []
    for _ in range(20):
        state.lease.extend(clock.monotonic())
        await reader.run_once()
        await reader.finish()
        batch = state.ordering.next_batch(10)
        taken += [message.id for message in batch]
        state.ordering.mark_delivered(batch)
        if batch:
            await _settle(state)
        clock.advance(timedelta(seconds=seconds / 20))
    return taken


async def test_new_messages_wait_for_retries_that_go_first() -> None:
    taken = await _read_beside_endless_retries(seconds=59)
    assert taken
    assert 201 not in taken


async def test_new_messages_do_not_starve_beside_retries_that_go_first() -> None:
    taken = await _read_beside_endless_retries(seconds=70)
    assert 201 in taken


async def _read_beside_one_key_of_retries(*, answers: bool) -> list[int]:
    """Read forty retries of one key, which all fit into the window, and a new message; return what was sent.

    A message takes a third of a second, or is never answered.
    """
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, *["due"] * 40, "fresh")
    state = build_state(store, clock, window=1_000, batch=100)
    await grant(state, 0)
    await _retry_now(store, state, *range(1, 41))
    reader = Reader(
        state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)),
        retry_interval=timedelta(milliseconds=250), sends_first=False,
    )  # fmt: skip
    sent: list[int] = []
    for _ in range(60):
        state.lease.extend(clock.monotonic())
        await reader.run_once()
        await reader.finish()
        batch = state.ordering.next_batch(10)
        sent += [message.id for message in batch]
        if answers:
            state.ordering.mark_delivered(batch)
            if batch:
                await _settle(state)
        clock.advance(timedelta(seconds=1 / 3))
    return sent


async def test_new_messages_wait_for_retries_that_wait_for_others_of_their_key() -> None:
    assert await _read_beside_one_key_of_retries(answers=True) == list(range(1, 42))


async def test_new_messages_do_not_wait_for_retries_behind_one_that_hangs() -> None:
    assert await _read_beside_one_key_of_retries(answers=False) == [1, 41]


# --- messages that waited ---


class _Counting(MemoryStore):
    """Counts the reads of keys, the searches and the claims that record something."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.calls: Counter[str] = Counter()

    async def find_due(self, *arguments: Any, **options: Any) -> Any:
        self.calls["find_due"] += 1
        return await super().find_due(*arguments, **options)

    async def read_keys(self, *arguments: Any, **options: Any) -> Any:
        self.calls["read_keys"] += 1
        return await super().read_keys(*arguments, **options)

    async def claim(self, *arguments: Any, **options: Any) -> Mapping[int, int]:
        self.calls["claim"] += 1
        return await super().claim(*arguments, **options)


async def _retry_now(store: MemoryStore, state: DestinationState, *ids: int) -> None:
    """Leave these messages as a redrive does: each waits for an attempt that is due."""
    retries = [_build_retry(id_, delay=timedelta(0)) for id_ in ids]
    await store.settle(state.fence([0]), Settlement(failures=retries))


def _build_retry(message_id: int, *, delay: timedelta, attempts: int = 0) -> FailedOutcome:
    return FailedOutcome(message_id=message_id, state=State.PENDING, waits=Waits.RETRY, attempts=attempts, delay=delay)


async def test_retries_of_many_keys_are_read_and_claimed_together() -> None:
    clock = FrozenClock()
    store = _Counting(clock)
    put(store, *[f"key-{number}" for number in range(100)])
    state = build_state(store, clock, window=100, batch=100)
    await grant(state, 0)
    await _retry_now(store, state, *range(1, 101))
    reader = _reader(state)
    for _ in range(3):
        await reader.run_once()
        await reader.finish()
    assert len(state.ordering.next_batch(100)) == 100
    assert store.calls["read_keys"] == store.calls["claim"] == 1


async def test_keys_that_a_read_did_not_reach_are_read_again() -> None:
    """The window has room for two messages, and the first key alone has as many."""
    clock = FrozenClock()
    store = _Counting(clock)
    put(store, *[key for key in "abc" for _ in range(2)])
    state = build_state(store, clock, window=2, batch=10)
    await grant(state, 0)
    parks = [FailedOutcome(message_id=id_, state=State.PENDING, waits=Waits.PARKED) for id_ in range(1, 7)]
    await store.settle(state.fence([0]), Settlement(failures=parks))
    for key in "abc":
        state.ordering.block(0, key, front=Waits.PARKED)
    assert sorted(await _send_all(_reader(state), state)) == [1, 2, 3, 4, 5, 6]


async def test_a_search_goes_on_where_it_ended_and_then_rests() -> None:
    """One key with many retries: each search passes all of them, and is not begun anew in every round."""
    clock = FrozenClock()
    store = _Counting(clock)
    put(store, *["a"] * 30)
    state = build_state(store, clock, window=10, batch=10)
    await grant(state, 0)
    await _retry_now(store, state, *range(1, 31))
    reader = _reader(state)
    for _ in range(20):
        await reader.run_once()
        await reader.finish()
    assert store.calls["find_due"] == 2, "a page of one batch, and one of four that has the rest"
    assert state.ordering.next_batch(10)[0].id == 1


async def test_what_came_due_before_the_mark_of_a_long_search_is_found() -> None:
    """A settlement that commits late leaves a time that the search has passed."""
    clock = FrozenClock()
    store = _Counting(clock)
    put(store, *[f"key-{number}" for number in range(200)])
    state = build_state(store, clock, window=400, batch=1)
    await grant(state, 0)
    await _retry_now(store, state, *range(2, 201))
    await store.settle(state.fence([0]), Settlement(failures=[_build_retry(1, delay=timedelta(hours=1))]))
    reader = _reader(state)
    await reader.run_once()
    await reader.run_once()
    late = _build_retry(1, delay=-timedelta(minutes=1), attempts=1)
    await store.settle(state.fence([0]), Settlement(failures=[late]))
    sent: list[int] = []
    for _ in range(20):
        clock.advance(timedelta(seconds=1))
        state.lease.extend(clock.monotonic())
        await reader.run_once()
        await reader.finish()
        sent += [message.id for message in state.ordering.next_batch(10)]
    assert 1 in sent
    assert 15 in sent, "the search goes on where it was"
    assert 200 not in sent, "and has not come to its end"


# --- safety net ---


class _Reads(MemoryStore):
    """Remembers which lanes each read was told to begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.anew: list[set[int]] = []

    async def read(self, destination, *, partitions, cursor, limit, **more):  # type: ignore[no-untyped-def]
        marks = cursor or Cursor()
        self.anew.append({partition for partition in partitions if partition not in marks.low})
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        low = {**dict.fromkeys(partitions, 1), **reading.cursor.low}
        return type(reading)(
            reading.messages, Cursor(low, reading.cursor.snapshot, reading.cursor.session), reading.complete
        )


async def test_every_lane_is_read_from_its_start_in_its_turn() -> None:
    clock, store = FrozenClock(), _Reads()
    duration = timedelta(days=1)
    lease = Lease(duration=duration)
    lease.extend(clock.monotonic())
    state = DestinationState(
        DestinationSettings(name="sink"), store=store, lease=lease, policy=OutcomePolicy(retry=DEFAULT_RETRY),
        clock=clock, telemetry=Telemetry(), dice=random.Random(1),
    )  # fmt: skip
    for partition in range(64):
        state.epochs[partition] = 1
        state.ordering.grant(partition)
    reader = Reader(state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)))
    await reader.run_once()
    store.anew.clear()
    for _ in range(64):
        clock.advance(timedelta(seconds=10))
        await reader.run_once()
    assert [len(lanes) for lanes in store.anew] == [1] * 64
    assert set().union(*store.anew) == set(range(64))


# --- pauses ---


class _Interrupted(MemoryStore):
    """Calls `meanwhile` once, when a call has its answer and has not returned it, or when a claim is to be written."""

    def __init__(self, clock: FrozenClock, *, during: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(clock=clock)
        self._during: str | None = during
        self._meanwhile = meanwhile
        self.is_armed = False

    async def _interrupt(self, name: str) -> None:
        if self.is_armed and name == self._during:
            self._during = None
            await self._meanwhile()

    async def blocked_keys(self, *arguments: Any, **options: Any) -> Any:
        answer = await super().blocked_keys(*arguments, **options)
        await self._interrupt("blocked_keys")
        return answer

    async def read(self, *arguments: Any, **options: Any) -> Any:
        answer = await super().read(*arguments, **options)
        await self._interrupt("read")
        return answer

    async def find_due(self, *arguments: Any, **options: Any) -> Any:
        answer = await super().find_due(*arguments, **options)
        await self._interrupt("find_due")
        return answer

    async def claim(self, *arguments: Any, **options: Any) -> Mapping[int, int]:
        await self._interrupt("claim")
        return await super().claim(*arguments, **options)


async def _send_all(reader: Reader, state: DestinationState) -> list[int]:
    """Make rounds until nothing moves; return the ids that were sent, in order. All are delivered."""
    sent: list[int] = []
    for _ in range(10):
        await reader.run_once()
        await reader.finish()
        batch = state.ordering.next_batch(10)
        sent += [message.id for message in batch]
        state.ordering.mark_delivered(batch)
        while state.ordering.has_outcomes:
            await _settle(state)
    return sent


@pytest.mark.parametrize(
    ("during", "is_down"),
    [
        *((name, False) for name in ("blocked_keys", "read", "find_due", "claim")),
        *((name, True) for name in ("blocked_keys", "read", "claim")),
    ],
)
async def test_what_is_deferred_in_a_pause_shorter_than_a_round_blocks_its_key(during: str, is_down: bool) -> None:
    """What was read before the pause says nothing about what a person did in it."""
    clock = FrozenClock()

    async def pause_and_defer() -> None:
        state.pause("to look at message 1")
        later = clock.now() + timedelta(minutes=1)
        result = await store.defer(Selection(ids=[1]), until=later, by="anna", limit=1)
        assert result.count == 1
        state.resume()

    store = _Interrupted(clock, during=during, meanwhile=pause_and_defer)
    state = build_state(store, clock)
    await grant(state, 0)
    reader = _reader(state)
    assert await _send_all(reader, state) == []
    clock.advance(timedelta(seconds=6))
    state.lease.extend(clock.monotonic())
    put(store, "a", "a")
    store.is_armed = True
    if is_down:
        state.open_breaker("down")
        state.close()
        clock.advance(timedelta(seconds=1))
    assert await _send_all(reader, state) == []
    clock.advance(timedelta(minutes=1))
    state.lease.extend(clock.monotonic())
    assert await _send_all(reader, state) == [1, 2]


# --- the window in bytes ---


def _put_large(store: MemoryStore, *sizes: int, key: str | None = None, partition: int = 0) -> None:
    messages = [
        Message(
            0, UUID(int=number), SINK, partition, Kind.EVENT, "t", "t", key, bytes(size), "text/plain", {}, "/", None,
            "c", None, datetime(2026, 1, 1, tzinfo=UTC),
        )
        for number, size in enumerate(sizes, start=1_000 * partition + 1)
    ]  # fmt: skip
    with store.transaction() as transaction:
        transaction.insert(Insert(names=Names(), messages=messages))


async def _drain(state: DestinationState, reader: Reader, clock: FrozenClock) -> tuple[list[int], int]:
    """Read, deliver and settle until nothing is left; return the ids in their order, and the most bytes in flight."""
    sent: list[int] = []
    most = 0
    for _ in range(500):
        await reader.run_once()
        await reader.finish()
        most = max(most, state.ordering.bytes_in_flight)
        batch = state.ordering.next_batch(3)
        sent += [message.id for message in batch]
        state.ordering.mark_delivered(batch)
        while state.ordering.has_outcomes:
            await _settle(state)
        clock.advance(timedelta(milliseconds=300))
        state.lease.extend(clock.monotonic())
    assert state.ordering.bytes_in_flight == 0
    return sent, most


@pytest.mark.parametrize("key", [None, "hot"])
async def test_a_backlog_is_drained_through_a_window_of_few_bytes(key: str | None) -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    state = build_state(store, clock, window_bytes=1_000, batch=100)
    for partition in range(4):
        _put_large(store, *([300] * 20), key=key and f"{key}-{partition}", partition=partition)
    await grant(state, 0, 1, 2, 3)
    sent, most = await _drain(state, _reader(state), clock)
    assert sorted(sent) == list(range(1, 81))
    assert most < 1_000 + 300
    if key is not None:
        assert [id_ for id_ in sent if id_ <= 20] == list(range(1, 21))


async def test_a_message_that_is_larger_than_the_window_is_delivered_alone() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    state = build_state(store, clock, window_bytes=1_000)
    _put_large(store, 5_000, 10, 5_000, 10)
    await grant(state, 0)
    sent, most = await _drain(state, _reader(state), clock)
    assert sent == [1, 2, 3, 4]
    assert most <= 5_010


async def test_a_key_of_large_messages_leaves_room_for_others() -> None:
    """Its share is an eighth of the window in bytes: here, one message."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    state = build_state(store, clock, window_bytes=8_000)
    _put_large(store, *([1_000] * 20), key="hot")
    _put_large(store, *([1_000] * 6), partition=1)
    await grant(state, 0, 1)
    reader = _reader(state)
    for _ in range(3):
        await reader.run_once()
        await reader.finish()
    assert {message.partition for message in state.ordering.next_batch(10)} == {0, 1}
    assert state.ordering.bytes_in_flight <= 8_000


async def test_every_lane_is_read_first_in_its_turn() -> None:
    """A lane that is never among the first would starve behind lanes with large messages."""
    reader = _reader(build_state(MemoryStore(), FrozenClock()))
    for marks in ({}, dict.fromkeys(range(1, 64), 500)):  # the first lane comes no further
        reader._cursor = Cursor(marks)
        for lanes in (range(64), range(5), range(8), range(1)):
            firsts = {reader._order_lanes(lanes)[0] for _ in range(16 * len(lanes) + 8)}
            assert firsts == set(lanes)


async def test_the_lanes_that_are_furthest_behind_are_read_first() -> None:
    reader = _reader(build_state(MemoryStore(), FrozenClock()))
    reader._cursor = Cursor({0: 900, 1: 100, 2: 500, 3: 300})
    orders = [reader._order_lanes(range(4)) for _ in range(32)]
    assert orders.count([1, 3, 2, 0]) >= 30


async def test_lanes_that_are_equally_far_come_in_turn() -> None:
    """A store that always reads from the start has no marks."""
    reader = _reader(build_state(MemoryStore(), FrozenClock()))
    reader._cursor = Cursor()
    assert len({reader._order_lanes(range(64))[0] for _ in range(40)}) > 30


# --- probes ---


class _BreaksOnce(MemoryStore):
    """Loses its line in the middle of the first round: after fresh messages were read, before those that are due."""

    is_broken = False

    async def find_due(self, destination: str, **options: Any) -> Sequence[DueMessage]:
        if not self.is_broken:
            self.is_broken = True
            raise StoreUnavailable("the line broke")
        return await super().find_due(destination, **options)


async def test_a_probe_goes_though_the_store_broke_while_it_was_read() -> None:
    """Nothing else is read while it is in flight: if it did not go, nothing would go any more."""
    clock = FrozenClock()
    store, transport = _BreaksOnce(clock=clock), MemoryTransport()
    await transport.open()
    put(store, "a", "b")
    state = build_state(store, clock)
    await grant(state, 0)
    state.open_breaker("503")
    state.close()
    clock.advance(timedelta(minutes=1))
    state.lease.extend(clock.monotonic())
    reader = _reader(state, transport)
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await reader.run_once()
    assert (store.is_broken, state.ordering.in_flight) == (True, 2)
    await reader.run_once()
    await reader.finish()
    sender.send_ready()
    await sender.finish(within=60)
    assert (len(transport.received), state.breaker.is_closed) == (1, True)


# --- pings of an idle destination ---


class _Pinged(MemoryTransport):
    """Fails its pings, each when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def ping(self) -> None:
        self.asked.set()
        await self.answers.wait()
        raise TransportUnavailable("it does not answer pings")


async def _ping(meanwhile: Callable[[DestinationState], Awaitable[object]]) -> DestinationState:
    """Let an idle reader ping, and do something before the ping fails."""
    clock = FrozenClock()
    state = build_state(MemoryStore(clock=clock), clock)
    await grant(state, 0)
    transport = _Pinged()
    reader = _reader(state, transport)
    while not transport.asked.is_set():
        await reader.run_once()
        clock.advance(state.settings.ping_interval)
        state.lease.extend(clock.monotonic())
        await asyncio.sleep(0)
    await meanwhile(state)
    transport.answers.set()
    assert reader._ping_task is not None
    await reader._ping_task
    return state


async def test_a_ping_that_fails_opens_the_breaker_of_an_idle_destination() -> None:
    async def wait(_: DestinationState) -> None: ...

    assert (await _ping(wait)).breaker.reason == "it does not answer pings"


async def test_a_ping_that_fails_while_a_message_is_being_sent_opens_nothing() -> None:
    """The answer to the message shows how the destination is, and comes soon."""

    async def take(state: DestinationState) -> None:
        assert isinstance(state.store, MemoryStore)
        put(state.store, "a")
        assert len(await claim_next(state)) == 1

    assert (await _ping(take)).breaker.is_closed


async def test_a_ping_that_fails_in_an_outage_makes_it_no_longer() -> None:
    async def open_breaker(state: DestinationState) -> None:
        state.open_breaker("503")

    breaker = (await _ping(open_breaker)).breaker
    assert (breaker.opened, breaker.reason) == (1, "503")


# --- blocked addresses ---


class _Limits(MemoryStore):
    """Remembers how many due messages each read asked for."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.limits: list[int] = []

    async def find_due(self, destination: str, *, limit: int, **more: Any) -> Sequence[DueMessage]:
        self.limits.append(limit)
        return await super().find_due(destination, limit=limit, **more)


class _Topics(MemoryTransport):
    """Has an address for each topic."""

    def __init__(self) -> None:
        super().__init__()
        self.features = TransportFeatures(name="topics", addresses=True)

    def get_address(self, message: Message) -> str | None:
        return message.topic


@pytest.mark.parametrize("is_blocked", [True, False])
async def test_what_comes_back_for_a_blocked_address_is_read_at_a_bounded_rate(is_blocked: bool) -> None:
    """Putting thousands off again would take every other turn from the other addresses."""
    clock = FrozenClock()
    store = _Limits(clock)
    put(store, *[None] * 200)
    state = build_state(store, clock, window=1_000, batch=100)
    await grant(state, 0)
    waiting = [
        FailedOutcome(message_id=id, state=State.PENDING, waits=Waits.RETRY, delay=timedelta(0)) for id in range(1, 201)
    ]
    await store.settle(state.fence([0]), Settlement(failures=waiting))
    if is_blocked:
        state.addresses.refuse("t", clock.monotonic(), message_id=UUID(int=1), reason="full", dice=1.0, is_missing=True)
    reader = Reader(
        state, transport=_Topics(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)),
        retry_interval=timedelta(milliseconds=10),
    )  # fmt: skip
    for _ in range(3):
        await reader.run_once()
        await reader.finish()
    clock.advance(timedelta(milliseconds=10))
    await reader.run_once()
    await reader.finish()
    assert store.limits[:2] == ([100, 10] if is_blocked else [100, 100])
    assert len(store.limits) == (2 if is_blocked else 4)


# --- lanes without a mark ---


class _Walking(MemoryStore):
    """Takes a second for each lane without a mark, as one with very many dead rows, and may take four at most."""

    def __init__(self, clock: FrozenClock, *, limit: float = 4.0) -> None:
        super().__init__(clock=clock)
        self.cold: list[int] = []
        self.failures = 0
        self._limit = limit
        self._ticks = clock
        self._marked: set[int] = set()

    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        marked = self._marked if cursor is not None else set()
        cold = len(set(partitions) - marked)
        if cold > self._limit:
            self._ticks.advance(timedelta(seconds=self._limit))
            self.failures += 1
            raise StoreUnavailable("no answer in time")
        self.cold.append(cold)
        self._ticks.advance(timedelta(seconds=cold))
        self._marked = set(partitions)
        return await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)


async def _read_cold(store: MemoryStore, clock: FrozenClock, *, rounds: int) -> DestinationState:
    state = build_state(store, clock)
    await grant(state, *range(64))
    reader = Reader(state, transport=MemoryTransport(), backoff=PollBackoff(poll_interval=timedelta(seconds=1)))
    for _ in range(rounds):
        state.lease.extend(clock.monotonic() + 1_000)
        await reader.run_once()
        await reader.finish()
    return state


async def test_cold_lanes_are_read_a_few_at_a_time_until_a_read_ends_in_time() -> None:
    clock = FrozenClock()
    store = _Walking(clock)
    put(store, "first", partition=0)
    put(store, "last", partition=63)
    state = await _read_cold(store, clock, rounds=3)
    assert store.failures == 2  # of 64 and of 16 lanes
    assert sum(store.cold) == 64
    assert max(store.cold) <= 4
    assert state.ordering.in_flight == 2


async def test_cold_lanes_that_are_quick_to_read_take_one_read() -> None:
    clock = FrozenClock()
    store = _Walking(clock, limit=64)
    store._ticks = FrozenClock()
    await _read_cold(store, clock, rounds=1)
    assert store.cold == [64]


# --- lanes that are lost and taken again ---


class _LateClaims(MemoryStore):
    """Answers claims only when it may, after they took effect."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.may_answer = asyncio.Event()
        self.claimed: list[list[int]] = []

    async def claim(self, fence: Fence, claim: Claim, **options: Any) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim, **options)
        self.claimed.append(list(claim.message_ids))
        await self.may_answer.wait()
        return revisions


async def _begin_claim(*keys: str, blocked: str | None = None) -> tuple[_LateClaims, DestinationState, Reader]:
    """A reader whose claim took effect and is not answered yet."""
    clock = FrozenClock()
    store = _LateClaims(clock)
    put(store, *keys)
    state = build_state(store, clock)
    await grant(state, 0)
    if blocked is not None:
        state.ordering.block(0, blocked, front=Waits.HELD)
    reader = _reader(state)
    await reader.run_once()
    await asyncio.sleep(0)
    assert len(store.claimed) == 1
    return store, state, reader


async def _lose_and_take(state: DestinationState) -> None:
    """Lose the lane, and take it again with what was claimed in it."""
    state.drop_lanes([0], is_fenced=False)
    numbers = state.lease.reserve_claim_numbers(10)
    (lane,), recovered = await state.store.take(
        state.lease.relay_id, SINK, partitions=[0], lease=LEASE, claim_number=numbers
    )
    state.epochs[0] = lane.epoch
    state.ordering.grant(0)
    for part in recovered:
        state.ordering.recover_claim(part.claim.number, part.messages, strikes=part.claim.strikes)


async def test_the_answer_to_a_claim_of_before_is_not_that_of_the_claim_with_which_a_message_came_back() -> None:
    """Its message would leave that claim never, and nobody reads what is in a claim."""
    store, state, reader = await _begin_claim("a")
    await _lose_and_take(state)
    store.may_answer.set()
    await reader.finish()
    await _settle(state)
    assert await store.claims(older_than=timedelta(0)) == []
    assert await _send_all(reader, state) == [1]


async def test_what_was_read_before_a_lane_was_taken_again_is_not_claimed() -> None:
    """It would be in a claim, and nobody would send it."""
    store, state, reader = await _begin_claim("a")
    put(store, "b")
    second = asyncio.create_task(reader.run_once())
    await asyncio.sleep(0)
    assert state.ordering.in_flight == 2
    await _lose_and_take(state)
    store.may_answer.set()
    await second
    await reader.finish()
    assert store.claimed == [[1]]


async def test_a_park_of_before_does_not_count_for_a_lane_that_was_taken_again() -> None:
    """A key with fewer than no parks under way would never be read."""
    store, state, reader = await _begin_claim("a", blocked="a")
    await _lose_and_take(state)
    state.ordering.block(0, "a", front=Waits.HELD)
    store.may_answer.set()
    await reader.finish()
    state.ordering.block(0, "a", front=Waits.PARKED)
    assert state.ordering.key_reads == 1


# --- what the store refuses to park ---


class _NoParking(MemoryStore):
    """Refuses to park, and to close what could not be parked, while it is told to."""

    refuses = True

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        if self.refuses and park:
            raise StoreRefused("a trigger refuses it")
        return await super().claim(fence, claim, park=park)

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        if self.refuses:
            raise StoreRefused("a trigger refuses it")
        return await super().settle(fence, settlement)


async def test_what_could_be_neither_parked_nor_closed_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pillarbox.relay.reader._REREAD_INTERVAL", 1e9)  # a read of the whole lane would find it too
    clock = FrozenClock()
    store = _NoParking(clock=clock)
    put(store, "a")
    state = build_state(store, clock)
    await grant(state, 0)
    state.ordering.block(0, "a", front=Waits.HELD)
    reader = _reader(state)
    await reader.run_once()
    await reader.finish()
    store.refuses = False
    state.lease.extend(clock.monotonic())
    await reader.run_once()
    await reader.finish()
    assert [message.waits for message in await store.find(Selection(), limit=9)] == [None], "not before its time"
    clock.advance(timedelta(seconds=ASIDE_INTERVAL + 1))
    state.lease.extend(clock.monotonic())
    await reader.run_once()
    await reader.finish()
    assert [message.waits for message in await store.find(Selection(), limit=9)] == [Waits.PARKED]


async def test_after_a_read_that_failed_every_lane_is_read_from_its_start() -> None:
    """Its connection may have been to another server: a position may stand above what nobody has read."""
    cursors: list[Cursor | None] = []

    class Noting(_BreaksOnce):
        async def read(self, destination: str, *, cursor: Cursor | None, **options: Any) -> ReadResult:
            cursors.append(cursor)
            return await super().read(destination, cursor=cursor, **options)

    clock = FrozenClock()
    store = Noting(clock=clock)
    put(store, "a")
    state = build_state(store, clock)
    await grant(state, 0)
    reader = _reader(state)
    for _ in range(2):
        await reader.run_once()
    await reader.finish()
    assert store.is_broken
    assert cursors[-1] is None


@pytest.mark.parametrize(("strikes", "recorded"), [(0, 0), (1, 1), (2, 1), (3, 2)])
def test_a_suspect_that_only_waits_keeps_its_strikes_through_a_takeover(strikes: int, recorded: int) -> None:
    """The takeover adds one to what is recorded."""
    assert _strikes_while_waiting(strikes) == recorded
