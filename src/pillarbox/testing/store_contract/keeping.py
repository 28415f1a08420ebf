"""What is kept of a delivered message, and that all others are kept whole."""

from __future__ import annotations

from msgspec.structs import replace

from pillarbox.message import State
from pillarbox.protocols import Moved, Selection, Settlement
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import LANE, MANY, NEAR, SECOND, close, own, put, state_of, stored

__all__ = ["KeepingContract"]


class KeepingContract:
    """The settings of history. Skipped for stores whose harness has no `with_keep`."""

    async def test_no_payload_keeps_everything_else(self, harness: StoreHarness) -> None:
        store = await harness.with_keep("no-payload")
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}))
        closed = await close(store, await own(store, LANE), message, State.DELIVERED)
        assert closed == replace(
            message, state=State.DELIVERED, payload=b"", payload_kept=False, status_at=closed.status_at
        )

    async def test_no_payload_keeps_the_payload_of_the_failed(self, harness: StoreHarness) -> None:
        store = await harness.with_keep("no-payload")
        (message,) = await put(harness, sample(key=NEAR))
        closed = await close(store, await own(store, LANE), message, State.FAILED)
        assert (closed.payload, closed.payload_kept) == (message.payload, True)

    async def test_off_forgets_the_delivered_and_keeps_the_failed(self, harness: StoreHarness) -> None:
        store = await harness.with_keep("off")
        delivered, failed = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        failed = await close(store, fence, failed, State.FAILED)
        await store.settle(fence, Settlement(delivered=[delivered.id]))
        assert list(await store.find(Selection(), limit=MANY)) == [failed]

    async def test_a_replay_leaves_alone_what_has_no_payload(self, harness: StoreHarness) -> None:
        bare, whole = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(harness.store, LANE)
        await close(harness.store, fence, whole, State.DELIVERED)
        bare = await close(await harness.with_keep("no-payload"), fence, bare, State.DELIVERED)
        moved = await harness.store.replay(Selection(), by="ann", limit=MANY)
        assert moved == Moved(1, whole.id, 1)
        assert await stored(harness.store, bare) == bare
        assert await state_of(harness.store, whole) is State.PENDING
