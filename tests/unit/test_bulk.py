"""Changes of more messages than one transaction takes: all of them are changed, each once, in order."""

from __future__ import annotations

import pytest

from pillarbox.contracts.store import Action, BulkResult, OperatorStore, Selection, Settlement
from pillarbox.message import State
from pillarbox.operations.bulk import BATCH_SIZE, change_all, count_by_state
from pillarbox.testing import MemoryHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import LANE, NEAR, fail, own

COUNT = 2 * BATCH_SIZE + 1


@pytest.fixture
async def harness() -> MemoryHarness:
    """A store with more failed messages than two batches."""
    harness = MemoryHarness()
    await harness.insert([sample(key=NEAR) for _ in range(COUNT)])
    fence = await own(harness.store, LANE)
    messages = await harness.store.find(Selection(), limit=2 * COUNT)
    await harness.store.settle(fence, Settlement(failures=[fail(message) for message in messages]))
    return harness


async def test_all_are_redriven_batch_after_batch(harness: MemoryHarness) -> None:
    store, progress = harness.store, list[int]()
    failed = Selection(states=[State.FAILED])
    assert await count_by_state(store, Action.REDRIVEN, failed) == {State.FAILED: COUNT}
    result = await change_all(
        store, failed, lambda store, chosen: store.redrive(chosen, by="ann", limit=BATCH_SIZE),
        on_progress=progress.append,
    )  # fmt: skip
    assert result.count == COUNT
    assert progress[:3] == [BATCH_SIZE, 2 * BATCH_SIZE, COUNT]
    assert await store.count(Selection(states=[State.PENDING])) == COUNT


async def test_named_ones_are_all_discarded_and_no_other(harness: MemoryHarness) -> None:
    store = harness.store
    ids = [message.id for message in await store.find(Selection(), limit=COUNT)]
    result = await change_all(
        store, Selection(ids=ids[:-1]),
        lambda store, chosen: store.discard(chosen, by="ann", reason="old", limit=BATCH_SIZE),
    )  # fmt: skip
    assert result.count == COUNT - 1
    assert [message.id for message in await store.find(Selection(states=[State.FAILED]), limit=9)] == ids[-1:]


async def test_a_short_batch_is_not_the_last_one(harness: MemoryHarness) -> None:
    """Relays may have claimed some of its messages meanwhile."""
    batches = iter([BulkResult(2, 10), BulkResult(0, 20, 1), BulkResult(5, 30), BulkResult(0, 30)])
    asked: list[int] = []

    async def change(_: OperatorStore, chosen: Selection) -> BulkResult:
        asked.append(chosen.after)
        return next(batches)

    assert await change_all(harness.store, Selection(), change) == BulkResult(7, 30, 1)
    assert asked == [0, 10, 20, 30]
