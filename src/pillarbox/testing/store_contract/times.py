"""Four times, never mixed up: when it happened, when it was written, when it changed last, when it may go next."""

from __future__ import annotations

from datetime import UTC, datetime

from pillarbox.message import Message, State
from pillarbox.protocols import Claim, Selection, Settlement
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    LEASE,
    NEAR,
    SECOND,
    close,
    fail,
    hold,
    own,
    park,
    put,
    retry,
    settled,
    stored,
)

__all__ = ["TimesContract"]

_HAPPENED = datetime(2019, 7, 8, 9, 10, 11, 121314, tzinfo=UTC)


class TimesContract:
    """`event_time`, `created_at`, `status_at` and `available_at` through a message's whole life."""

    async def test_every_step_moves_its_own_times_alone(self, harness: StoreHarness) -> None:
        store, clock = harness.store, harness.clock
        (message,) = await put(harness, sample(key=NEAR, event_time=_HAPPENED))
        one = Selection(ids=[message.id])
        fence = await own(store, LANE)

        async def expect(*, status_at: datetime | None, available_at: datetime | None) -> None:
            now = await stored(store, message)
            assert (now.event_time, now.created_at) == (_HAPPENED, message.created_at)
            assert (now.status_at, now.available_at) == (status_at, available_at)

        await expect(status_at=message.created_at, available_at=None)
        clock.advance(HOUR)
        await store.claim(fence, Claim(1, [message.id]))
        await expect(status_at=message.created_at, available_at=None)

        retried_at = clock.advance(HOUR)
        await store.settle(fence, Settlement(troubles=[retry(message, delay=LEASE)], finished=[1]))
        await expect(status_at=retried_at, available_at=retried_at + LEASE)

        deferred_at = clock.advance(HOUR)
        until = deferred_at + 5 * HOUR
        await store.defer(one, until=until, by="ann", limit=1)
        await expect(status_at=deferred_at, available_at=until)

        failed_at = clock.advance(HOUR)
        await settled(store, fence, fail(message))
        await expect(status_at=failed_at, available_at=until)

        redriven_at = clock.advance(HOUR)
        await store.redrive(one, by="ann", limit=1)
        await expect(status_at=redriven_at, available_at=redriven_at)

        held_at = clock.advance(HOUR)
        await settled(store, fence, hold(message))
        await expect(status_at=held_at, available_at=None)

        redriven_at = clock.advance(HOUR)
        await store.redrive(one, by="ann", limit=1)
        delivered_at = clock.advance(HOUR)
        await close(store, fence, message, State.DELIVERED)
        await expect(status_at=delivered_at, available_at=redriven_at)

        replayed_at = clock.advance(HOUR)
        await store.replay(one, by="ann", limit=1)
        await expect(status_at=replayed_at, available_at=replayed_at)

        discarded_at = clock.advance(HOUR)
        await store.discard(one, by="ann", reason="no", limit=1)
        await expect(status_at=discarded_at, available_at=replayed_at)

    async def test_a_deferred_delivery_keeps_the_time_it_was_due(self, harness: StoreHarness) -> None:
        """Latency of what was deferred counts from there, so history must still know."""
        due_at = harness.clock.now() + HOUR
        (message,) = await put(harness, sample(key=NEAR, event_time=_HAPPENED, available_at=due_at))
        fence = await own(harness.store, LANE)
        delivered_at = harness.clock.advance(HOUR + LEASE)
        closed = await close(harness.store, fence, message, State.DELIVERED)
        assert (closed.available_at, closed.status_at) == (due_at, delivered_at)
        assert (closed.created_at, closed.event_time) == (message.created_at, _HAPPENED)

    async def test_parking_has_no_time_to_go(self, harness: StoreHarness) -> None:
        store = harness.store
        messages: list[Message] = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await park(store, await own(store, LANE), *messages)
        for message in messages:
            assert (await stored(store, message)).available_at is None
