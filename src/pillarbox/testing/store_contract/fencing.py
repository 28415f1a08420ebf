"""Fencing: a relay whose lane was taken over writes nothing, neither in that lane nor in its others in the same call.

The races run the same promises over two connections at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import BulkResult, Claim, Fence, Selection, Settlement, Store
from pillarbox.errors import Fenced, IllegalTransition
from pillarbox.message import Message, State
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    FAR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    OTHER,
    SECOND,
    close,
    fail,
    list_ids,
    own,
    pair_ids,
    put,
    read_everything,
    read_state,
    reload,
    retry,
    settle_failures,
)

__all__ = ["FenceContract", "RaceContract"]


@dataclass(frozen=True)
class _Takeover:
    """A relay with two lanes and a message in hand in each, whose first lane now belongs to another."""

    store: Store
    old: Fence
    new: Fence
    lost: Message
    kept: Message
    fresh: Message
    """In the lane that was kept, in nobody's hands."""


async def _take_over(harness: StoreHarness) -> _Takeover:
    store = harness.store
    lost, kept, fresh = await put(harness, sample(key=NEAR), sample(key=FAR), sample(key=FAR))
    old = await own(store, LANE, OTHER)
    await store.claim(old, Claim(1, [lost.id, kept.id]))
    harness.clock.advance(LEASE)
    return _Takeover(store, old, await own(store, LANE), lost, kept, fresh)


async def _assert_fenced(taken: _Takeover, write: Callable[[], Awaitable[object]]) -> None:
    before = await read_everything(taken.store)
    with pytest.raises(Fenced) as fenced:
        await write()
    assert fenced.value.destination == "orders"
    assert fenced.value.partitions == {LANE}
    assert await read_everything(taken.store) == before


class FenceContract:
    """The fence of `Store.claim` and `Store.settle`."""

    async def test_a_claim_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        await _assert_fenced(taken, lambda: taken.store.claim(taken.old, Claim(2, [taken.fresh.id])))

    async def test_parking_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        await _assert_fenced(taken, lambda: taken.store.claim(taken.old, Claim(2, []), park=pair_ids(taken.fresh)))

    async def test_a_delivery_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        delivered = Settlement(delivered=[taken.lost.id, taken.kept.id], finished=[1])
        await _assert_fenced(taken, lambda: taken.store.settle(taken.old, delivered))
        await _assert_fenced(
            taken, lambda: taken.store.settle(taken.old, Settlement(delivered=[taken.kept.id], touched=[1]))
        )

    async def test_trouble_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        for failures in ([retry(taken.lost)], [fail(taken.lost)], [retry(taken.kept)], [fail(taken.kept)]):
            settlement = Settlement(failures=failures, touched=[1])
            await _assert_fenced(taken, lambda settlement=settlement: taken.store.settle(taken.old, settlement))  # type: ignore[misc]

    async def test_giving_back_is_fenced(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        returned = Settlement(returned=[taken.lost.id, taken.kept.id], finished=[1])
        await _assert_fenced(taken, lambda: taken.store.settle(taken.old, returned))

    async def test_the_epoch_of_another_relay_proves_nothing(self, harness: StoreHarness) -> None:
        """After a failover that lost commits, two relays may have taken a lane under one epoch."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        owner = await own(store, LANE)
        other = Fence(sample_relay().relay_id, "orders", owner.epochs)
        before = await read_everything(store)
        with pytest.raises(Fenced):
            await store.claim(other, Claim(1, [message.id]))
        with pytest.raises(Fenced):
            await store.settle(other, Settlement(delivered=[message.id]))
        await store.release(other)
        assert await read_everything(store) == before

    async def test_the_fence_holds_after_a_restart(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        store = await harness.restart()
        with pytest.raises(Fenced):
            await store.settle(taken.old, Settlement(delivered=[taken.lost.id]))
        assert await read_state(store, taken.lost) is State.SENDING

    async def test_the_new_owner_may_write(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        await taken.store.settle(taken.new, Settlement(delivered=[taken.lost.id], finished=[1]))
        assert await read_state(taken.store, taken.lost) is State.DELIVERED

    async def test_lanes_that_were_kept_may_be_written_apart(self, harness: StoreHarness) -> None:
        taken = await _take_over(harness)
        kept = taken.old.narrow([OTHER])
        await taken.store.settle(kept, Settlement(delivered=[taken.kept.id], touched=[1]))
        assert await read_state(taken.store, taken.kept) is State.DELIVERED
        assert await read_state(taken.store, taken.lost) is State.SENDING

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

    async def test_an_older_epoch_settles_nothing(self, harness: StoreHarness) -> None:
        """The relay took the lane twice. What it claimed before may have been sent by another in between."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        old = await own(store, LANE)
        new = await own(store, LANE, relay_id=old.relay_id)
        await store.claim(new, Claim(1, [message.id]))
        before = await read_everything(store)
        for settlement in (
            Settlement(delivered=[message.id], finished=[1]),
            Settlement(failures=[retry(message)], finished=[1]),
            Settlement(returned=[message.id], finished=[1]),
        ):
            with pytest.raises(Fenced):
                await store.settle(old, settlement)
        assert await read_everything(store) == before

    async def test_a_lane_that_was_given_up_is_fenced(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        await harness.store.release(fence)
        with pytest.raises(Fenced):
            await harness.store.settle(fence, Settlement(delivered=[message.id]))
        assert await reload(harness.store, message) == message

    async def test_a_lane_that_was_never_taken_is_fenced(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=SECOND))
        fence = await own(harness.store, OTHER)
        for epoch in (0, 1):
            with pytest.raises(Fenced) as fenced:
                await harness.store.claim(Fence(fence.relay_id, "orders", {LANE: epoch}), Claim(1, [message.id]))
            assert fenced.value.partitions == {LANE}
        assert await reload(harness.store, message) == message

    async def test_the_same_lane_of_another_destination_proves_nothing(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE, destination="billing")
        with pytest.raises(Fenced) as fenced:
            await harness.store.claim(Fence(fence.relay_id, "orders", fence.epochs), Claim(1, []))
        assert fenced.value.destination == "orders"


_ROUNDS = 8
_LANES = range(16)


async def _register(store: Store) -> UUID:
    relay = sample_relay()
    await store.register(relay, lease=LEASE)
    return relay.relay_id


async def _try_to_settle(store: Store, fence: Fence, settlement: Settlement) -> bool:
    try:
        await store.settle(fence, settlement)
    except Fenced:
        return False
    return True


async def _try_to_change(change: Awaitable[BulkResult]) -> bool:
    try:
        return (await change).count == 1
    except IllegalTransition:
        return False


async def _assert_refused_beside_takeover(
    harness: StoreHarness, message: Message, write: Callable[[Fence], Coroutine[Any, Any, object]]
) -> None:
    """Let the old owner of a lane write while a takeover of it has written the new owner and has not committed.

    A check that does not wait for the takeover would see the old owner.
    """
    store = harness.store
    old = await own(store, LANE)
    await store.claim(old, Claim(1, [message.id]))
    heir = await _register(store)
    messages, journal, *_ = await read_everything(store)
    async with harness.open_takeover(heir, "orders", LANE) as takeover:
        call = asyncio.create_task(write(old))
        await takeover.wait_for(call)
        await takeover.commit()
        with pytest.raises(Fenced):
            await call
    assert (await read_everything(store))[:2] == (messages, journal)


class RaceContract:
    """Calls of two connections at the same time: one of them wins, and the other one is refused or finds nothing."""

    async def test_a_takeover_and_a_settle_have_one_winner(self, harness: StoreHarness) -> None:
        """Either the old owner's word stands and the heir gets nothing, or the heir gets it and the word is refused."""
        store, second = harness.store, await harness.open_second()
        for _ in range(_ROUNDS):
            (message,) = await put(harness, sample(key=NEAR))
            old = await own(store, LANE)
            await store.claim(old, Claim(1, [message.id]))
            harness.clock.advance(LEASE)
            heir = await _register(second)
            delivered = Settlement(delivered=[message.id], finished=[1])
            stood, (_, first) = await asyncio.gather(
                _try_to_settle(store, old, delivered),
                second.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1),
            )
            lanes, last = await second.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
            assert [lane.partition for lane in lanes] == [LANE]
            handed = {id for one in (*first, *last) for id in list_ids(one.messages)}
            assert handed == (set() if stood else {message.id})
            assert await read_state(store, message) is (State.DELIVERED if stood else State.SENDING)
            await second.leave(heir)
            await store.discard(Selection(states=[State.PENDING]), by="test", reason="round over", limit=MANY)

    async def test_a_delivery_beside_a_takeover_waits_for_it_and_is_refused(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        delivered = Settlement(delivered=[message.id], finished=[1])
        await _assert_refused_beside_takeover(harness, message, lambda old: harness.store.settle(old, delivered))

    async def test_a_failure_beside_a_takeover_waits_for_it_and_is_refused(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        failed = Settlement(failures=[fail(message)], finished=[1])
        await _assert_refused_beside_takeover(harness, message, lambda old: harness.store.settle(old, failed))

    async def test_a_claim_beside_a_takeover_waits_for_it_and_is_refused(self, harness: StoreHarness) -> None:
        message, later = await put(harness, sample(key=NEAR), sample(key=NEAR))
        claim = Claim(2, [later.id])
        await _assert_refused_beside_takeover(harness, message, lambda old: harness.store.claim(old, claim))
        assert await read_state(harness.store, later) is State.PENDING

    async def test_a_park_beside_a_takeover_waits_for_it_and_is_refused(self, harness: StoreHarness) -> None:
        message, later = await put(harness, sample(key=NEAR), sample(key=NEAR))
        await _assert_refused_beside_takeover(
            harness, message, lambda old: harness.store.claim(old, Claim(2, []), park=pair_ids(later))
        )

    async def test_a_relay_that_leaves_while_it_takes_owns_nothing(self, harness: StoreHarness) -> None:
        """Either it takes first and its leaving frees what it took, or it leaves first and takes nothing."""
        store, second = harness.store, await harness.open_second()
        for _ in range(_ROUNDS):
            (message,) = await put(harness, sample(key=NEAR))
            await store.claim(await own(store, LANE), Claim(1, [message.id]))
            harness.clock.advance(LEASE)
            relay_id = await _register(store)
            (lanes, _), _ = await asyncio.gather(
                store.take(relay_id, "orders", partitions=list(_LANES), lease=LEASE, claim_number=1),
                second.leave(relay_id),
            )
            took_it = LANE in [lane.partition for lane in lanes]
            heir = await _register(store)
            _, inherited = await store.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
            assert [one.claim.strikes for one in inherited] == ([] if took_it else [1])
            await store.leave(heir)
            await store.discard(Selection(states=[State.PENDING]), by="test", reason="round over", limit=MANY)

    async def test_two_takers_never_both_own_a_lane(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.open_second()
        for _ in range(_ROUNDS):
            mine, theirs = await _register(store), await _register(second)
            (ours, _), (others, _) = await asyncio.gather(
                store.take(mine, "orders", partitions=list(_LANES), lease=LEASE, claim_number=1),
                second.take(theirs, "orders", partitions=list(reversed(_LANES)), lease=LEASE, claim_number=1),
            )
            owners = {lane.partition: mine for lane in ours} | {lane.partition: theirs for lane in others}
            assert not {lane.partition for lane in ours} & {lane.partition for lane in others}
            assert dict((await store.registry(lease=LEASE)).owners.get("orders", {})) == owners
            for lane in (*ours, *others):
                assert lane.epoch > 0
            harness.clock.advance(LEASE)

    async def test_two_heirs_never_both_inherit_a_message(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.open_second()
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        for _ in range(_ROUNDS):
            harness.clock.advance(LEASE)
            heirs = [await _register(store), await _register(second)]
            takings = await asyncio.gather(
                *(
                    one.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
                    for one, heir in zip((store, second), heirs, strict=True)
                )
            )
            inherited = [one for _, of_one in takings for one in of_one]
            assert [(list_ids(one.messages), one.claim.strikes) for one in inherited] == [([message.id], 1)]
            assert await read_state(store, message) is State.SENDING

    async def test_two_heirs_of_one_claim_each_inherit_what_is_in_their_lanes(self, harness: StoreHarness) -> None:
        """The claim of a relay that died may have messages of many lanes, and many relays take those at once."""
        store, second = harness.store, await harness.open_second()
        for _ in range(_ROUNDS):
            messages = await put(harness, sample(key=NEAR), sample(key=FAR))
            await store.claim(await own(store, LANE, OTHER), Claim(1, list_ids(messages)))
            harness.clock.advance(LEASE)
            heirs = [await _register(store), await _register(second)]
            takings = await asyncio.gather(
                store.take(heirs[0], "orders", partitions=[LANE], lease=LEASE, claim_number=1),
                second.take(heirs[1], "orders", partitions=[OTHER], lease=LEASE, claim_number=1),
            )
            inherited = [[(list_ids(one.messages), one.claim.strikes) for one in of_one] for _, of_one in takings]
            assert inherited == [[([message.id], 1)] for message in messages]
            for heir in heirs:
                await store.leave(heir)
            await store.discard(Selection(states=[State.PENDING]), by="test", reason="round over", limit=MANY)

    async def test_one_heir_takes_over_several_destinations_at_once(self, harness: StoreHarness) -> None:
        store, names = harness.store, ["orders", "billing", "mail"]
        for _ in range(_ROUNDS):
            messages = await put(harness, *(replace(sample(key=NEAR), destination=name) for name in names))
            dead = await _register(store)
            for number, (name, message) in enumerate(zip(names, messages, strict=True), start=1):
                lanes, _ = await store.take(dead, name, partitions=[LANE], lease=LEASE, claim_number=100 * number)
                await store.claim(Fence(dead, name, {LANE: lanes[0].epoch}), Claim(number, [message.id]))
            harness.clock.advance(LEASE)
            heir = await _register(store)
            takings = await asyncio.gather(
                *(
                    store.take(heir, name, partitions=[LANE], lease=LEASE, claim_number=100 * number)
                    for number, name in enumerate(names, start=1)
                )
            )
            inherited = [list_ids(one.messages) for _, of_one in takings for one in of_one]
            assert inherited == [[message.id] for message in messages]
            await store.leave(heir)
            await store.discard(Selection(states=[State.PENDING]), by="test", reason="round over", limit=MANY)

    async def test_two_operators_redrive_a_message_once(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.open_second()
        fence = await own(store, LANE)
        for number in range(1, _ROUNDS + 1):
            (message,) = await put(harness, sample(key=SECOND))
            await settle_failures(store, fence, fail(message), number=number)
            selection = Selection(states=[State.FAILED])
            moves = await asyncio.gather(
                store.redrive(selection, by="ann", limit=MANY), second.redrive(selection, by="bob", limit=MANY)
            )
            assert sum(move.count for move in moves) == 1
            lines = await store.journal(message_id=message.message_id)
            assert [line.action for line in lines] == ["failed", "redriven"]
            await close(store, fence, message, State.DELIVERED, number=number)

    async def test_an_operator_and_a_claim_have_one_winner(self, harness: StoreHarness) -> None:
        """Either the claim was first and the message is left alone, or the claim says that the lane was changed."""
        store, second = harness.store, await harness.open_second()
        fence = await own(store, LANE)
        revision = (await store.claim(fence, Claim(1, [])))[LANE]
        for number in range(2, 2 + 2 * _ROUNDS):
            (message,) = await put(harness, sample(key=NEAR))
            named, later = Selection(ids=[message.id]), await store.now() + LEASE
            changed, revisions = await asyncio.gather(
                _try_to_change(second.discard(named, by="ann", reason="race", limit=1))
                if number % 2
                else _try_to_change(second.defer(named, until=later, by="ann", limit=1)),
                store.claim(fence, Claim(number, [message.id])),
            )
            assert not (changed and revisions[LANE] == revision)
            if not changed:
                assert await read_state(store, message) is State.SENDING
            await store.settle(fence, Settlement(returned=[message.id], finished=[number]))
            await store.discard(Selection(states=[State.PENDING]), by="ann", reason="round over", limit=MANY)
            revision = (await store.claim(fence, Claim(1, [])))[LANE]

    async def test_two_claims_of_one_number_are_one(self, harness: StoreHarness) -> None:
        """A repeat after an answer that was slow, not lost."""
        store, second = harness.store, await harness.open_second()
        fence = await own(store, LANE)
        for number in range(1, _ROUNDS + 1):
            (message,) = await put(harness, sample(key=NEAR))
            await asyncio.gather(*(one.claim(fence, Claim(number, [message.id])) for one in (store, second)))
            await asyncio.gather(
                *(one.settle(fence, Settlement(delivered=[message.id], finished=[number])) for one in (store, second))
            )
            assert await read_state(store, message) is State.DELIVERED
