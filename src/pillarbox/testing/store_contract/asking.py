"""Finding messages, open and closed, by what is known of them."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from msgspec.structs import replace

from pillarbox.message import Message, State
from pillarbox.protocols import Claim, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    SECOND,
    THIRD,
    close,
    fail,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
    stored,
)

__all__ = ["AskingContract"]


async def _found(harness: StoreHarness, selection: Selection) -> list[int]:
    found = ids(await harness.store.find(selection, limit=MANY))
    assert await harness.store.count(selection) == len(found)
    return found


async def _only(harness: StoreHarness, message: Message, *selections: Selection) -> None:
    """Each of the selections finds this message and no other."""
    for selection in selections:
        assert await _found(harness, selection) == [message.id], selection


class AskingContract:
    """`Store.find`."""

    async def test_everything_is_found_by_id(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        fence = await own(store, LANE)
        await close(store, fence, messages[2], State.DELIVERED)
        await close(store, fence, messages[0], State.FAILED)
        assert await _found(harness, Selection()) == ids(messages)

    async def test_finds_page_by_page(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=NEAR) for _ in range(5)))
        fence = await own(store, LANE)
        for place in (0, 3):
            await close(store, fence, messages[place], State.DELIVERED)
        pages, after = [], 0
        while page := ids(await store.find(Selection(after=after), limit=2)):
            pages.append(page)
            after = page[-1]
        every = ids(messages)
        assert pages == [every[:2], every[2:4], every[4:]]

    async def test_finds_by_what_the_writer_said(self, harness: StoreHarness) -> None:
        mine = sample(key=NEAR, destination="billing", topic="bills", type="bill.sent", correlation_id="request-1")
        mine, _ = await put(harness, mine, sample(key=SECOND))
        selections = (
            Selection(ids=[mine.id]),
            Selection(ids=[mine.id, 987654]),
            Selection(message_ids=[mine.message_id, uuid4()]),
            Selection(destination="billing"),
            Selection(topic="bills"),
            Selection(type="bill.sent"),
            Selection(key=NEAR),
            Selection(correlation_id="request-1"),
        )
        await _only(harness, mine, *selections)
        await close(harness.store, await own(harness.store, LANE, destination="billing"), mine, State.DELIVERED)
        await _only(harness, mine, *selections)

    async def test_every_condition_must_hold(self, harness: StoreHarness) -> None:
        mine, other = await put(harness, sample(key=NEAR, topic="a"), sample(key=NEAR, topic="b"))
        await _only(harness, mine, Selection(key=NEAR, topic="a"))
        assert await _found(harness, Selection(ids=[other.id], topic="a")) == []
        assert await _found(harness, Selection(topic="A")) == []

    async def test_empty_lists_find_nothing(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        for selection in (Selection(ids=[]), Selection(message_ids=[]), Selection(states=[])):
            assert await _found(harness, selection) == []

    async def test_an_empty_key_is_a_key(self, harness: StoreHarness) -> None:
        empty, _ = await put(harness, sample(key=""), sample(key=None))
        await _only(harness, empty, Selection(key=""))

    async def test_finds_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(9)))
        fresh, sending, delivered, failed, skipped, discarded, held, retrying, parked = messages
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, failed, State.FAILED)
        await close(store, fence, skipped, State.SKIPPED)
        await close(store, fence, discarded, State.DISCARDED)
        await settled(store, fence, hold(held), retry(retrying))
        await park(store, fence, parked)
        await store.claim(fence, Claim(1, [sending.id]))
        expected = {
            State.PENDING: [fresh, retrying, parked],
            State.SENDING: [sending],
            State.DELIVERED: [delivered],
            State.FAILED: [failed, held],
            State.SKIPPED: [skipped],
            State.DISCARDED: [discarded],
        }
        for state, those in expected.items():
            found = await store.find(Selection(states=[state]), limit=MANY)
            assert ids(found) == ids(those)
            assert all(message.state is state for message in found)
        both = Selection(states=[State.SENDING, State.FAILED])
        assert await _found(harness, both) == ids([sending, failed, held])

    async def test_a_retrying_message_in_hand_is_sending(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settled(store, fence, retry(message))
        await store.claim(fence, Claim(1, [message.id]))
        await _only(harness, message, Selection(states=[State.SENDING]))

    async def test_finds_by_a_part_of_the_last_error(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        odd, plain, _ = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        await settled(
            store, fence, retry(odd, error="Disk 50%_full (a\\b)"), fail(plain, error="Disk 50 percent full (ab)")
        )
        assert await _found(harness, Selection(error="dISK 50")) == ids([odd, plain])
        await _only(harness, odd, *(Selection(error=part) for part in ("50%", "%_FULL", "_f", "a\\b")))
        await _only(harness, plain, Selection(error="percent"))
        assert await _found(harness, Selection(error="50%full")) == []

    async def test_finds_by_attempts(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        none, two, three = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settled(store, fence, retry(two, attempts=2), fail(three, attempts=3))
        assert await _found(harness, Selection(min_attempts=0)) == ids([none, two, three])
        assert await _found(harness, Selection(min_attempts=2)) == ids([two, three])
        assert await _found(harness, Selection(min_attempts=3)) == ids([three])

    async def test_finds_by_the_time_of_creation(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=NEAR))
        harness.clock.advance(LEASE)
        (second,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), first, State.DELIVERED)
        assert first.created_at is not None
        assert second.created_at is not None
        assert first.created_at < second.created_at
        instant = timedelta(microseconds=1)
        assert await _found(harness, Selection(since=first.created_at)) == ids([first, second])
        await _only(harness, second, Selection(since=first.created_at + instant), Selection(since=second.created_at))
        await _only(harness, first, Selection(until=second.created_at))
        assert await _found(harness, Selection(until=second.created_at + instant)) == ids([first, second])
        assert await _found(harness, Selection(until=first.created_at)) == []
        await _only(harness, first, Selection(since=first.created_at, until=second.created_at))

    async def test_finds_by_the_time_of_the_last_change(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        closed, waiting = await put(harness, sample(key=NEAR), sample(key=SECOND))
        harness.clock.advance(HOUR)
        closed = await close(store, fence, closed, State.DELIVERED)
        harness.clock.advance(HOUR)
        await settled(store, fence, retry(waiting))
        waiting = await stored(store, waiting)
        assert closed.status_at is not None
        assert waiting.status_at == closed.status_at + HOUR
        assert await _found(harness, Selection(changed_before=closed.status_at)) == []
        await _only(harness, closed, Selection(changed_before=waiting.status_at))
        later = waiting.status_at + timedelta(microseconds=1)
        assert await _found(harness, Selection(changed_before=later)) == ids([closed, waiting])

    async def test_payloads_can_be_left_out(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await close(store, await own(store, LANE), messages[0], State.DELIVERED)
        whole = await store.find(Selection(), limit=MANY)
        bare = await store.find(Selection(), limit=MANY, payloads=False)
        assert [message.payload for message in bare] == [b"", b""]
        assert list(bare) == [replace(message, payload=b"") for message in whole]
