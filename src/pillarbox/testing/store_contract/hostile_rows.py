"""Rows that others wrote by plain SQL, with values that no message has: each fails by itself, and stops nobody."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.store import Claim, FailedOutcome, Selection, Settlement, Store
from pillarbox.message import Message, State, Waits
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import find_key, sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    list_ids,
    own,
    put,
    read_due,
    read_key,
    reload,
)

__all__ = ["HostileRowsContract", "check_hostile_rows"]

_SEED: Final = 20_261_117
_LANES: Final = range(64)
_KEYS: Final[Sequence[str | None]] = [*(find_key(lane) for lane in range(0, 64, 9)), None]
_FEW: Final = 100
_ROUND: Final = 250


class HostileRowsContract:
    """An unreadable row is read with its reason, in its place, and can be closed, found, discarded and redriven."""

    async def test_an_unreadable_row_is_read_beside_the_others_with_its_reason(self, harness: StoreHarness) -> None:
        is_good: list[bool] = []
        for number, fault in enumerate(harness.faults):
            if number % 8 == 0:
                await harness.insert([sample(key=NEAR)])
                is_good.append(True)
            is_good += [False] if await harness.insert_spoiled(sample(key=NEAR), fault) else []

        found = await _read_all(harness.store)

        assert [message.unreadable is None for message in found] == is_good
        assert not all(is_good)
        assert all(message.unreadable.startswith("unreadable row: ") for message in found if message.unreadable)

    async def test_an_unreadable_row_that_waits_is_read_when_due_and_by_its_key(self, harness: StoreHarness) -> None:
        store, message = harness.store, await _put_unreadable(harness)
        fence = await own(store, LANE)
        retry = FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.RETRY, delay=timedelta(0))
        await store.settle(fence, Settlement(failures=[retry]))

        (due,) = await read_due(store)
        by_key = await read_key(store)

        assert due.unreadable == message.unreadable
        assert list_ids(by_key) == [message.id]
        assert [one.key for one in await store.blocked_keys("orders", partitions=[LANE])] == [NEAR]
        assert await store.next_due("orders", partitions=[LANE]) == harness.clock.now()

    async def test_an_unreadable_row_in_a_dead_relays_hands_is_recovered(self, harness: StoreHarness) -> None:
        store, message = harness.store, await _put_unreadable(harness)
        (good,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id, good.id]))
        harness.clock.advance(2 * LEASE)

        heir = await _take_over(store)

        assert list_ids(heir) == [message.id, good.id]

    async def test_a_closed_unreadable_row_is_found_discarded_and_redriven(self, harness: StoreHarness) -> None:
        store, message = harness.store, await _put_unreadable(harness)
        fence = await own(store, LANE)
        failed = FailedOutcome(message_id=message.id, state=State.FAILED, error=message.unreadable)
        await store.settle(fence, Settlement(failures=[failed]))

        closed = await reload(store, message)
        assert (closed.state, closed.last_error, closed.unreadable) == (
            State.FAILED,
            message.unreadable,
            message.unreadable,
        )
        assert closed.payload == message.payload
        assert await store.count(Selection(error="unreadable ROW")) == 1
        assert (await store.discard(Selection(ids=[message.id]), by="ann", reason="junk", limit=1)).count == 1
        assert (await store.redrive(Selection(ids=[message.id]), by="ann", limit=1)).count == 1
        assert (await reload(store, message)).state is State.PENDING
        assert [line.action for line in await store.journal()] == ["failed", "discarded", "redriven"]

    async def test_every_question_is_answered_with_unreadable_rows_open_and_closed(self, harness: StoreHarness) -> None:
        store = harness.store
        for fault in harness.faults:
            await harness.insert_spoiled(sample(key=NEAR), fault)
        found = await _read_all(store)
        fence = await own(store, *_LANES)
        half = [FailedOutcome(message_id=one.id, state=State.FAILED, error=one.unreadable) for one in found[::2]]
        await store.settle(fence, Settlement(failures=half))

        shown = await store.find(Selection(), limit=MANY)
        assert sorted(list_ids(shown)) == list_ids(found)
        assert all(one.unreadable is not None for one in shown if one.state is State.PENDING)
        assert sum(one.count for one in await store.counts()) == len(found)
        assert len(await store.journal(limit=MANY)) == len(half)
        await store.oldest_due()
        await store.rollups(window=HOUR)
        await store.claims(older_than=timedelta(0))
        assert (await store.discard(Selection(), by="ann", reason="junk", limit=MANY)).count == len(found)
        assert (
            await store.redrive(Selection(states=[State.FAILED, State.DISCARDED]), by="ann", limit=MANY)
        ).count == len(found)

    async def test_a_good_row_can_be_read_with_and_without_its_payload(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        for _ in range(2):
            for payloads in (True, False):
                (found,) = await harness.store.find(Selection(), limit=MANY, payloads=payloads)
                assert (found.unreadable, found.raw, found.payload_kept) == (None, None, True)
            await harness.store.settle(fence, Settlement(delivered=[message.id]))

    async def test_a_row_that_no_relay_would_ever_read_is_refused(self, harness: StoreHarness) -> None:
        taken = [one for one in harness.refused_faults if await harness.insert_spoiled(sample(key=NEAR), one)]
        assert taken == []

    async def test_an_unreadable_row_shows_what_stands_in_it(self, harness: StoreHarness) -> None:
        message = await _put_unreadable(harness)
        if harness.shows_raw:
            assert message.raw is not None
            assert all(value for value in message.raw.values())
            assert all(name in (message.unreadable or "") for name in message.raw)

    @pytest.mark.timeout(3_600)
    @pytest.mark.fuzz
    async def test_a_relay_delivers_every_good_message_and_closes_every_bad_one(self, harness: StoreHarness) -> None:
        dice = random.Random(_SEED)  # noqa: S311
        for rows in _list_rounds():
            await check_hostile_rows(harness, rows=rows, dice=dice)

    @pytest.mark.timeout(3_600)
    @pytest.mark.fuzz
    async def test_a_relay_closes_rows_with_random_values_and_delivers_the_good_ones(
        self, harness: StoreHarness
    ) -> None:
        dice = random.Random(_SEED)  # noqa: S311
        for rows in _list_rounds():
            await check_random_rows(harness, rows=rows, dice=dice)


def _list_rounds() -> list[int]:
    """List the rows of each round: as many in all as PILLARBOX_FUZZ_COUNT says."""
    count = int(os.environ.get("PILLARBOX_FUZZ_COUNT", _FEW))
    return [min(_ROUND, count - begun) for begun in range(0, count, _ROUND)]


async def check_hostile_rows(harness: StoreHarness, *, rows: int, dice: random.Random) -> None:
    """Write good and spoiled rows at random, and have a relay deliver them.

    Every good one must arrive once and in the order of its key, and every spoiled one must be closed with a reason.
    """
    good: list[Message] = []
    spoiled: list[Message] = []
    for _ in range(rows):
        # Without a key any lane is right.
        message = sample(key=dice.choice(_KEYS[:-1]))
        faults = [dice.choice(harness.faults) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
        if dice.random() < 0.5:
            message = sample(key=dice.choice(_KEYS))
            good.append(message)
            await harness.insert([message])
        elif await harness.insert_spoiled(message, *faults):
            spoiled.append(message)
    arrived = await _run_relay(harness)

    assert sorted(message.message_id for message in arrived) == sorted(message.message_id for message in good)
    assert _group_by_key(arrived) == _group_by_key(good)
    left = await harness.store.find(
        Selection(states=[state for state in State if state is not State.DELIVERED]), limit=rows
    )
    assert len(left) == len(spoiled)
    assert [(one.state, one.last_error) for one in left if not _is_closed_with_reason(one)] == []
    await _clear(harness)


async def check_random_rows(harness: StoreHarness, *, rows: int, dice: random.Random) -> None:
    """Write good rows and rows with random values, and have a relay deliver them.

    Every good one must arrive once and in the order of its key. Every other must be delivered, because its values
    happen to be those of a message, or closed with a reason.
    """
    good: list[Message] = []
    written = 0
    for _ in range(rows):
        message = sample(key=dice.choice(_KEYS))
        if dice.random() < 0.3:
            good.append(message)
            await harness.insert([message])
        else:
            written += await harness.insert_random(message, dice)
    arrived = await _run_relay(harness)

    wanted = {message.message_id for message in good}
    good_ones = [message for message in arrived if message.message_id in wanted and message.unreadable is None]
    assert _group_by_key(good_ones) == _group_by_key(good)
    found = await harness.store.find(Selection(), limit=2 * rows)
    assert len(found) == len(good) + written
    odd = [one for one in found if one.state is not State.DELIVERED and not _is_closed_with_reason(one)]
    assert [(one.state, one.waits, one.last_error, one.unreadable) for one in odd] == []
    await _clear(harness)


def _is_closed_with_reason(message: Message) -> bool:
    return message.state is State.FAILED and (message.last_error or "").startswith("unreadable row: ")


async def _clear(harness: StoreHarness) -> None:
    """Remove what the last round has left."""
    for state in (State.DELIVERED, State.FAILED):
        await harness.store.purge(state, older_than=timedelta(0), limit=10 * _ROUND)


async def _run_relay(harness: StoreHarness) -> list[Message]:
    """Have a relay send all that can be sent; return what arrived."""
    transport = MemoryTransport()
    destination = Destination(lambda: transport, DestinationSettings(name="orders"))
    relay = Relay(
        _StaysOpen(harness.store), [destination], settings=RelaySettings(poll_interval=timedelta(milliseconds=20))
    )
    async with asyncio.timeout(60):
        await relay.run(once=True)
    return list(transport.received)


def _group_by_key(messages: Sequence[Message]) -> dict[str, list[object]]:
    groups: dict[str, list[object]] = defaultdict(list)
    for message in messages:
        if message.key is not None:
            groups[message.key].append(message.message_id)
    return groups


async def _put_unreadable(harness: StoreHarness) -> Message:
    """Write a row that cannot be read for a reason which leaves its key and its lane as they are."""
    await harness.insert_spoiled(sample(key=NEAR), harness.faults[0])
    (message,) = await _read_all(harness.store)
    assert (message.key, message.partition) == (NEAR, LANE)
    return message


async def _read_all(store: Store) -> list[Message]:
    """Read what a relay would read: fresh messages, those that wait and are due, and those that wait behind others."""
    fresh = await store.read("orders", partitions=_LANES, cursor=None, limit=MANY)
    found = [*fresh.messages, *await read_due(store, *_LANES)]
    for blocked in await store.blocked_keys("orders", partitions=_LANES):
        found += await read_key(store, blocked.key, partition=blocked.partition)
    by_id = {message.id: message for message in found}
    return [by_id[id_] for id_ in sorted(by_id)]


async def _take_over(store: Store) -> list[Message]:
    heir = sample_relay()
    await store.register(heir, lease=LEASE)
    _, claims = await store.take(heir.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
    return [message for claim in claims for message in claim.messages]


class _StaysOpen:
    """A store that a relay neither opens nor closes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def open(self) -> None: ...

    async def close(self) -> None: ...
