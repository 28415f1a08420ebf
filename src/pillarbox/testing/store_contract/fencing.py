"""A relay whose lane was taken over writes nothing: not in that lane, and not beside it in the same call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from pillarbox.errors import Fenced
from pillarbox.message import Message, State
from pillarbox.protocols import Claim, Fence, Settlement, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    LANE,
    LEASE,
    NEAR,
    OTHER,
    SECOND,
    everything,
    fail,
    own,
    put,
    retry,
    state_of,
    stored,
)

__all__ = ["FencingContract"]


@dataclass(frozen=True)
class _Taken:
    """A relay with two lanes and a message in hand in each, whose first lane now belongs to another."""

    store: Store
    old: Fence
    new: Fence
    lost: Message
    kept: Message
    fresh: Message
    """In the lane that was kept, in nobody's hands."""


async def _taken_over(harness: StoreHarness) -> _Taken:
    store = harness.store
    lost, kept, fresh = await put(harness, sample(key=NEAR), sample(key=FAR), sample(key=FAR))
    old = await own(store, LANE, OTHER)
    await store.claim(old, Claim(1, [lost.id, kept.id]))
    harness.clock.advance(LEASE)
    return _Taken(store, old, await own(store, LANE), lost, kept, fresh)


async def _refused(taken: _Taken, write: Callable[[], Awaitable[None]]) -> None:
    before = await everything(taken.store)
    with pytest.raises(Fenced) as fenced:
        await write()
    assert fenced.value.destination == "orders"
    assert fenced.value.partitions == {LANE}
    assert await everything(taken.store) == before


class FencingContract:
    """The fence of `Store.claim` and `Store.settle`."""

    async def test_a_claim_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        await _refused(taken, lambda: taken.store.claim(taken.old, Claim(2, [taken.fresh.id])))

    async def test_parking_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        await _refused(taken, lambda: taken.store.claim(taken.old, Claim(2, []), park=[taken.fresh.id]))

    async def test_a_delivery_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        delivered = Settlement(delivered=[taken.lost.id, taken.kept.id], finished=[1])
        await _refused(taken, lambda: taken.store.settle(taken.old, delivered))
        await _refused(taken, lambda: taken.store.settle(taken.old, Settlement(delivered=[taken.kept.id], touched=[1])))

    async def test_trouble_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        for troubles in ([retry(taken.lost)], [fail(taken.lost)], [retry(taken.kept)], [fail(taken.kept)]):
            settlement = Settlement(troubles=troubles, touched=[1])
            await _refused(taken, lambda settlement=settlement: taken.store.settle(taken.old, settlement))  # type: ignore[misc]

    async def test_giving_back_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        returned = Settlement(returned=[taken.lost.id, taken.kept.id], finished=[1])
        await _refused(taken, lambda: taken.store.settle(taken.old, returned))

    async def test_the_fence_holds_after_a_restart(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        store = await harness.restart()
        with pytest.raises(Fenced):
            await store.settle(taken.old, Settlement(delivered=[taken.lost.id]))
        assert await state_of(store, taken.lost) is State.SENDING

    async def test_the_new_owner_may_write(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        await taken.store.settle(taken.new, Settlement(delivered=[taken.lost.id], finished=[1]))
        assert await state_of(taken.store, taken.lost) is State.DELIVERED

    async def test_lanes_that_were_kept_may_be_written_apart(self, harness: StoreHarness) -> None:
        taken = await _taken_over(harness)
        kept = taken.old.narrowed([OTHER])
        await taken.store.settle(kept, Settlement(delivered=[taken.kept.id], touched=[1]))
        assert await state_of(taken.store, taken.kept) is State.DELIVERED
        assert await state_of(taken.store, taken.lost) is State.SENDING

    async def test_every_lost_lane_is_named(self, harness: StoreHarness) -> None:
        old = await own(harness.store, LANE, OTHER, 9)
        harness.clock.advance(LEASE)
        await own(harness.store, LANE, 9)
        with pytest.raises(Fenced) as fenced:
            await harness.store.claim(old, Claim(1, []))
        assert fenced.value.partitions == {LANE, 9}

    async def test_an_older_epoch_is_fenced(self, harness: StoreHarness) -> None:
        """The relay is the owner, but by another taking."""
        (message,) = await put(harness, sample(key=NEAR))
        old = await own(harness.store, LANE)
        new = await own(harness.store, LANE, relay_id=old.relay_id)
        with pytest.raises(Fenced):
            await harness.store.claim(old, Claim(1, [message.id]))
        await harness.store.claim(new, Claim(1, [message.id]))

    async def test_a_lane_that_was_given_up_is_fenced(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        await harness.store.release(fence)
        with pytest.raises(Fenced):
            await harness.store.settle(fence, Settlement(delivered=[message.id]))
        assert await stored(harness.store, message) == message

    async def test_a_lane_that_was_never_taken_is_fenced(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=SECOND))
        fence = await own(harness.store, OTHER)
        for epoch in (0, 1):
            with pytest.raises(Fenced) as fenced:
                await harness.store.claim(Fence(fence.relay_id, "orders", {LANE: epoch}), Claim(1, [message.id]))
            assert fenced.value.partitions == {LANE}
        assert await stored(harness.store, message) == message

    async def test_the_same_lane_of_another_destination_proves_nothing(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE, destination="billing")
        with pytest.raises(Fenced) as fenced:
            await harness.store.claim(Fence(fence.relay_id, "orders", fence.epochs), Claim(1, []))
        assert fenced.value.destination == "orders"
