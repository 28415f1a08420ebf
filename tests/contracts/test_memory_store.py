"""The memory store keeps the contract, and its transactions keep theirs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Selection, Store
from pillarbox.contracts.writer import Accept, Insert, Writer
from pillarbox.errors import NotInTransaction, StoreUnavailable
from pillarbox.message import Message, Names
from pillarbox.stores.memory import InboxRow, Snapshot, Transactions
from pillarbox.testing import MemoryHarness, MemoryStore, MemoryTransaction, StoreContract, StoreHarness, sample
from pillarbox.testing.store_contract.fencing import RaceContract
from pillarbox.testing.store_contract.writing import WakeupContract

NEED_A_LOOP = {*vars(RaceContract), *vars(WakeupContract)}
TESTS = sorted(name for name in dir(StoreContract) if name.startswith("test_") and name not in NEED_A_LOOP)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def harness(self) -> StoreHarness:
        return MemoryHarness()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=FrozenClock())


def batch(*messages: Message, delay: timedelta | None = None, serialize_keys: bool = False) -> Insert:
    return Insert(names=Names(), messages=messages, delay=delay, serialize_keys=serialize_keys)


def seen(message_id: str) -> Accept:
    return Accept(names=Names(), consumer="mailer", source="/shop", message_id=message_id)


async def payloads(store: Store) -> list[bytes]:
    return [message.payload for message in await store.find(Selection(), limit=100)]


def test_no_method_ever_suspends() -> None:
    """The whole contract without an event loop: the first step of a coroutine that never waits is its last."""
    for name in TESTS:
        if name.startswith("test_a_relay_"):
            continue  # the relay around the store does wait
        coroutine: Any = getattr(StoreContract(), name)(MemoryHarness())
        with pytest.raises(StopIteration):
            coroutine.send(None)


async def test_a_block_commits_at_its_end(store: MemoryStore) -> None:
    with store.transaction() as tx:
        tx.insert(batch(sample(payload=b"sync")))
        assert await payloads(store) == []
    async with store.transaction() as tx:
        tx.insert(batch(sample(payload=b"async")))
        assert await payloads(store) == [b"sync"]
    assert await payloads(store) == [b"sync", b"async"]


async def test_a_block_that_raises_rolls_back(store: MemoryStore) -> None:
    def broken() -> None:
        with store.transaction() as tx:
            tx.insert(batch(sample()))
            raise LookupError

    async def broken_async() -> None:
        async with store.transaction() as tx:
            tx.insert(batch(sample()))
            tx.execute(seen("1"))
            raise LookupError

    with pytest.raises(LookupError):
        broken()
    with pytest.raises(LookupError):
        await broken_async()
    assert await payloads(store) == []
    with store.transaction() as tx:
        assert tx.execute(seen("1"))


async def test_an_ended_transaction_takes_nothing(store: MemoryStore) -> None:
    committed, rolled_back = store.transaction(), store.transaction()
    committed.commit()
    rolled_back.rollback()
    for tx in (committed, rolled_back):
        with pytest.raises(NotInTransaction, match=r"store\.transaction\(\)"):
            tx.insert(batch(sample()))
        with pytest.raises(NotInTransaction):
            tx.execute(seen("1"))
        with pytest.raises(NotInTransaction):
            tx.commit()
    assert await payloads(store) == []


async def test_a_savepoint_is_undone_alone(store: MemoryStore) -> None:
    def broken(tx: MemoryTransaction) -> None:
        with tx.savepoint():
            tx.insert(batch(sample(payload=b"undone")))
            tx.execute(seen("1"))
            with tx.savepoint():
                tx.insert(batch(sample(payload=b"undone too")))
            raise LookupError

    with store.transaction() as tx:
        tx.insert(batch(sample(payload=b"before")))
        with pytest.raises(LookupError):
            broken(tx)
        assert tx.execute(seen("1"))
        with tx.savepoint():
            tx.insert(batch(sample(payload=b"kept")))
        tx.insert(batch(sample(payload=b"after")))
    assert await payloads(store) == [b"before", b"kept", b"after"]


async def test_ids_are_drawn_at_the_insert_and_seen_at_the_commit(store: MemoryStore) -> None:
    first, second = store.transaction(), store.transaction()
    first.insert(batch(sample(payload=b"1")))
    second.insert(batch(sample(payload=b"2")))
    first.insert(batch(sample(payload=b"3")))
    second.commit()
    assert await payloads(store) == [b"2"]
    first.commit()
    assert await payloads(store) == [b"1", b"2", b"3"]


async def test_rows_are_stamped_by_the_clock_at_the_insert() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    written_at = clock.now()
    with store.transaction() as tx:
        tx.insert(batch(sample()))
        tx.insert(batch(sample(), delay=timedelta(hours=1)))
        clock.advance(timedelta(hours=5))
    at_once, deferred = await store.find(Selection(), limit=10)
    assert (at_once.created_at, at_once.status_at, at_once.available_at) == (written_at, written_at, None)
    assert (deferred.created_at, deferred.available_at) == (written_at, written_at + timedelta(hours=1))


def test_a_duplicate_is_not_new(store: MemoryStore) -> None:
    with store.transaction() as tx:
        assert tx.execute(seen("1"))
        assert not tx.execute(seen("1"))
    with store.transaction() as tx:
        assert not tx.execute(seen("1"))


def test_what_was_started_is_taken_over(store: MemoryStore) -> None:
    store.data.inbox["mailer", "/shop", "1"] = InboxRow("started", FrozenClock().now())
    with store.transaction() as tx:
        assert tx.execute(seen("1"))
    with store.transaction() as tx:
        assert not tx.execute(seen("1"))


def test_a_concurrent_duplicate_is_told_to_come_again(store: MemoryStore) -> None:
    first, second = store.transaction(), store.transaction()
    assert first.execute(seen("1"))
    with pytest.raises(StoreUnavailable, match="try again"):
        second.execute(seen("1"))
    assert second.execute(seen("2"))
    first.rollback()
    assert second.execute(seen("1"))


def test_serialised_keys_are_held_to_the_end(store: MemoryStore) -> None:
    first, second, third = store.transaction(), store.transaction(), store.transaction()
    first.insert(batch(sample(key="a"), sample(key=None), serialize_keys=True))
    with pytest.raises(StoreUnavailable, match="key a"):
        second.insert(batch(sample(key="a"), serialize_keys=True))
    second.insert(batch(sample(key="b"), sample(key=None), serialize_keys=True))
    third.insert(batch(sample(key="a")))
    first.commit()
    second.insert(batch(sample(key="a"), serialize_keys=True))


async def test_a_refused_batch_writes_nothing(store: MemoryStore) -> None:
    first, second = store.transaction(), store.transaction()
    first.insert(batch(sample(key="b"), serialize_keys=True))
    with pytest.raises(StoreUnavailable):
        second.insert(batch(sample(key="a"), sample(key="b"), serialize_keys=True))
    second.commit()
    assert await payloads(store) == []


def test_it_is_a_writer_and_a_store(store: MemoryStore) -> None:
    """Said to the type checker."""
    writer: Writer = store.transaction()
    as_store: Store = store
    assert isinstance(writer, MemoryTransaction)
    assert as_store.features.name == "memory"


def test_a_snapshot_ends_after_the_last_transaction_that_ended() -> None:
    """As PostgreSQL's does: a younger one in progress is beyond `xmax`, not in `xip`."""
    transactions = Transactions()
    assert transactions.snapshot() == Snapshot(1, 1, frozenset())
    first, second, third = (transactions.begin() for _ in range(3))
    assert transactions.snapshot() == Snapshot(1, 1, frozenset())
    transactions.end(second)
    assert transactions.snapshot() == Snapshot(first, third, frozenset({first}))
    transactions.end(first)
    assert transactions.snapshot() == Snapshot(third, third, frozenset())
    transactions.end(third)
    assert transactions.snapshot() == Snapshot(third + 1, third + 1, frozenset())


def test_a_snapshot_sees_what_had_ended() -> None:
    snapshot = Snapshot(3, 6, frozenset({3, 5}))
    assert [tx for tx in range(1, 8) if snapshot.sees(tx)] == [1, 2, 4]
