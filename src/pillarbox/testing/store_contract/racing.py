"""Two at once over one store: exactly one wins, and nothing is lost between them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from pillarbox.errors import Fenced
from pillarbox.message import State
from pillarbox.protocols import Claim, Fence, Selection, Settlement, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    LANE,
    LEASE,
    MANY,
    NEAR,
    SECOND,
    close,
    fail,
    ids,
    own,
    put,
    settled,
    state_of,
)

__all__ = ["RacingContract"]

_ROUNDS = 8
_LANES = range(16)


async def _registered(store: Store) -> UUID:
    relay = sample_relay()
    await store.register(relay, lease=LEASE)
    return relay.relay_id


async def _settled(store: Store, fence: Fence, settlement: Settlement) -> bool:
    try:
        await store.settle(fence, settlement)
    except Fenced:
        return False
    return True


class RacingContract:
    """Interleavings that only two connections have."""

    async def test_a_takeover_and_a_settle_have_one_winner(self, harness: StoreHarness) -> None:
        """Either the old owner's word stands and the heir gets nothing, or the heir gets it and the word is refused."""
        store, second = harness.store, await harness.second()
        for _ in range(_ROUNDS):
            (message,) = await put(harness, sample(key=NEAR))
            old = await own(store, LANE)
            await store.claim(old, Claim(1, [message.id]))
            harness.clock.advance(LEASE)
            heir = await _registered(second)
            delivered = Settlement(delivered=[message.id], finished=[1])
            stood, (_, first) = await asyncio.gather(
                _settled(store, old, delivered),
                second.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1),
            )
            lanes, last = await second.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
            assert [lane.partition for lane in lanes] == [LANE]
            handed = {id for one in (*first, *last) for id in ids(one.messages)}
            assert handed == (set() if stood else {message.id})
            assert await state_of(store, message) is (State.DELIVERED if stood else State.SENDING)
            await second.leave(heir)
            await store.discard(Selection(states=[State.PENDING]), by="test", reason="round over", limit=MANY)

    async def test_two_takers_never_both_own_a_lane(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.second()
        for _ in range(_ROUNDS):
            mine, theirs = await _registered(store), await _registered(second)
            (got, _), (gotten, _) = await asyncio.gather(
                store.take(mine, "orders", partitions=list(_LANES), lease=LEASE, claim_number=1),
                second.take(theirs, "orders", partitions=list(reversed(_LANES)), lease=LEASE, claim_number=1),
            )
            owners = {lane.partition: mine for lane in got} | {lane.partition: theirs for lane in gotten}
            assert not {lane.partition for lane in got} & {lane.partition for lane in gotten}
            assert dict((await store.registry(lease=LEASE)).owners.get("orders", {})) == owners
            for lane in (*got, *gotten):
                assert lane.epoch > 0
            harness.clock.advance(LEASE)

    async def test_two_heirs_never_both_inherit_a_message(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.second()
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        for _ in range(_ROUNDS):
            harness.clock.advance(LEASE)
            heirs = [await _registered(store), await _registered(second)]
            takings = await asyncio.gather(
                *(
                    one.take(heir, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
                    for one, heir in zip((store, second), heirs, strict=True)
                )
            )
            inherited = [one for _, of_one in takings for one in of_one]
            assert [(ids(one.messages), one.claim.strikes) for one in inherited] == [([message.id], 1)]
            assert await state_of(store, message) is State.SENDING

    async def test_two_operators_redrive_a_message_once(self, harness: StoreHarness) -> None:
        store, second = harness.store, await harness.second()
        fence = await own(store, LANE)
        for number in range(1, _ROUNDS + 1):
            (message,) = await put(harness, sample(key=SECOND))
            await settled(store, fence, fail(message), number=number)
            selection = Selection(states=[State.FAILED])
            moves = await asyncio.gather(
                store.redrive(selection, by="ann", limit=MANY), second.redrive(selection, by="bob", limit=MANY)
            )
            assert sum(move.count for move in moves) == 1
            lines = await store.journal(message_id=message.message_id)
            assert [line.action for line in lines] == ["failed", "redriven"]
            await close(store, fence, message, State.DELIVERED, number=number)

    async def test_two_claims_of_one_number_are_one(self, harness: StoreHarness) -> None:
        """A repeat after an answer that was slow, not lost."""
        store, second = harness.store, await harness.second()
        fence = await own(store, LANE)
        for number in range(1, _ROUNDS + 1):
            (message,) = await put(harness, sample(key=NEAR))
            await asyncio.gather(*(one.claim(fence, Claim(number, [message.id])) for one in (store, second)))
            await asyncio.gather(
                *(one.settle(fence, Settlement(delivered=[message.id], finished=[number])) for one in (store, second))
            )
            assert await state_of(store, message) is State.DELIVERED
