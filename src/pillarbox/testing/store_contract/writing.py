"""Writing: committed messages are complete and in order, their times are right, and a commit wakes the relay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Claim, Selection, Settlement, Wakeups
from pillarbox.message import Kind, Message, State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    SECOND,
    close,
    fail,
    hold,
    list_ids,
    own,
    park,
    put,
    read_due,
    reload,
    retry,
    settle_failures,
)

__all__ = ["TimesContract", "WakeupContract", "WriteContract"]

_WRITTEN_FIELDS = (
    "message_id",
    "destination",
    "partition",
    "kind",
    "type",
    "topic",
    "key",
    "payload",
    "content_type",
    "headers",
    "source",
    "subject",
    "correlation_id",
    "causation_id",
    "event_time",
)


def _written_fields(message: Message) -> list[object]:
    return [getattr(message, name) for name in _WRITTEN_FIELDS]


def _build_rich() -> Message:
    return sample(
        key="Zürich/\u6771\u4eac 'quoted\" \\ %_\U0001f4ee",
        destination="Orders.v2_x-1",
        topic="ünï/çødé",
        type="orders.placed.v2",
        kind=Kind.COMMAND,
        payload=bytes(range(256)) * 3,
        content_type="application/octet-stream",
        headers={"traceparent": "00-ab-cd-01", "X-name.1_a": "value \"'\\ %s {}", "empty": ""},
        source="/shöp?x=1",
        subject="sübject",
        correlation_id="cörrelation",
        causation_id="cäusation",
        event_time=datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    )


def _build_bare() -> Message:
    return sample(key=None, payload=b"", headers={}, subject=None, causation_id=None)


class WriteContract:
    """Messages of the store's own write path: complete, in order, and visible once committed."""

    async def test_every_field_comes_back_as_it_was_written(self, harness: StoreHarness) -> None:
        for written in (_build_rich(), _build_bare()):
            (found,) = await put(harness, written)
            assert _written_fields(found) == _written_fields(written)
            assert isinstance(found.kind, Kind)
            assert isinstance(found.payload, bytes)
            assert dict(found.headers) == dict(written.headers)

    async def test_a_read_returns_every_field_too(self, harness: StoreHarness) -> None:
        for written in (_build_rich(), _build_bare()):
            (found,) = await put(harness, written)
            reading = await harness.store.read(found.destination, partitions=[found.partition], cursor=None, limit=MANY)
            assert list(reading.messages) == [found]

    async def test_every_field_survives_its_closing(self, harness: StoreHarness) -> None:
        for written in (_build_rich(), _build_bare()):
            (before,) = await put(harness, written)
            fence = await own(harness.store, before.partition, destination=before.destination)
            closed = await close(harness.store, fence, before, State.DELIVERED)
            assert _written_fields(closed) == _written_fields(written)
            assert dict(closed.headers) == dict(written.headers)
            assert (closed.id, closed.created_at, closed.available_at) == (before.id, before.created_at, None)

    async def test_the_store_adds_the_rest(self, harness: StoreHarness) -> None:
        (found,) = await put(harness, sample())
        assert found.id > 0
        assert (found.attempts, found.last_error, found.waits, found.available_at) == (0, None, None, None)
        assert (found.state, found.payload_kept) == (State.PENDING, True)
        assert found.created_at is not None
        assert found.created_at == found.status_at

    async def test_times_are_in_utc_to_the_microsecond(self, harness: StoreHarness) -> None:
        at = datetime(2031, 5, 6, 7, 8, 9, 10, tzinfo=timezone(-timedelta(hours=3)))
        (found,) = await put(harness, sample(event_time=at, available_at=at))
        assert found.event_time == at
        assert found.available_at == at
        for time in (found.event_time, found.available_at, found.created_at, found.status_at):
            assert time is not None
            assert time.utcoffset() == timedelta(0)

    async def test_ids_follow_the_order_of_the_batch(self, harness: StoreHarness) -> None:
        batch = [sample(key=key) for key in (NEAR, FAR, SECOND, NEAR, None, NEAR)]
        found = await put(harness, *batch)
        assert [message.message_id for message in found] == [message.message_id for message in batch]
        assert list_ids(found) == sorted(set(list_ids(found)))

    async def test_one_message_may_go_to_several_destinations(self, harness: StoreHarness) -> None:
        first = sample(destination="orders")
        second = sample(destination="billing", message_id=first.message_id)
        found = await put(harness, first, second)
        assert [message.destination for message in found] == ["orders", "billing"]

    async def test_a_fixed_time_makes_it_deferred(self, harness: StoreHarness) -> None:
        at = harness.clock.now() + HOUR
        (found,) = await put(harness, sample(available_at=at))
        assert (found.waits, found.available_at, found.state) == (Waits.DEFERRED, at, State.PENDING)

    async def test_a_delay_is_counted_from_the_writing(self, harness: StoreHarness) -> None:
        for found in await put(harness, sample(), sample(), delay=HOUR):
            assert found.waits is Waits.DEFERRED
            assert found.created_at is not None
            assert found.available_at == found.created_at + HOUR

    async def test_uncommitted_messages_are_invisible(self, harness: StoreHarness) -> None:
        store = harness.store
        async with harness.open_transaction() as transaction:
            await transaction.insert(
                [sample(key=NEAR), sample(key=NEAR, available_at=datetime(2020, 1, 1, tzinfo=UTC))]
            )
            assert list(await store.find(Selection(), limit=MANY)) == []
            assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
            assert list(await read_due(store)) == []
            assert list(await store.counts()) == []
            await transaction.commit()
        assert len(await store.find(Selection(), limit=MANY)) == 2

    async def test_rolled_back_messages_never_were(self, harness: StoreHarness) -> None:
        async with harness.open_transaction() as transaction:
            await transaction.insert([sample(key=NEAR)])
            await transaction.rollback()
        assert list(await harness.store.find(Selection(), limit=MANY)) == []

    async def test_an_id_never_comes_again(self, harness: StoreHarness) -> None:
        first, last = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(harness.store, LANE)
        closed = [
            await close(harness.store, fence, message, State.DELIVERED, number=number)
            for number, message in enumerate((first, last), start=1)
        ]
        assert await harness.store.purge_archived(closed) == 2
        (after,) = await put(harness, sample(key=NEAR))
        assert after.id > last.id

    async def test_an_id_does_not_come_again_after_a_restart(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        closed = await close(harness.store, fence, first, State.DELIVERED)
        assert await harness.store.purge_archived([closed]) == 1
        store = await harness.restart()
        await harness.insert([sample(key=NEAR)])
        (after,) = await store.find(Selection(), limit=MANY)
        assert after.id > first.id

    async def test_committed_messages_survive_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, _build_rich())
        assert await reload(await harness.restart(), message) == message


_HAPPENED = datetime(2019, 7, 8, 9, 10, 11, 121314, tzinfo=UTC)


class TimesContract:
    """`event_time`, `created_at`, `status_at` and `available_at` through a message's whole life."""

    async def test_every_step_moves_its_own_times_alone(self, harness: StoreHarness) -> None:
        store, clock = harness.store, harness.clock
        (message,) = await put(harness, sample(key=NEAR, event_time=_HAPPENED))
        one = Selection(ids=[message.id])
        fence = await own(store, LANE)

        async def expect(*, status_at: datetime | None, available_at: datetime | None) -> None:
            now = await reload(store, message)
            assert (now.event_time, now.created_at) == (_HAPPENED, message.created_at)
            assert (now.status_at, now.available_at) == (status_at, available_at)

        await expect(status_at=message.created_at, available_at=None)
        clock.advance(HOUR)
        await store.claim(fence, Claim(1, [message.id]))
        await expect(status_at=message.created_at, available_at=None)

        retried_at = clock.advance(HOUR)
        await store.settle(fence, Settlement(failures=[retry(message, delay=LEASE)], finished=[1]))
        await expect(status_at=retried_at, available_at=retried_at + LEASE)

        deferred_at = clock.advance(HOUR)
        until = deferred_at + 5 * HOUR
        await store.defer(one, until=until, by="ann", limit=1)
        await expect(status_at=deferred_at, available_at=until)

        failed_at = clock.advance(HOUR)
        await settle_failures(store, fence, fail(message))
        await expect(status_at=failed_at, available_at=until)

        redriven_at = clock.advance(HOUR)
        await store.redrive(one, by="ann", limit=1)
        await expect(status_at=redriven_at, available_at=redriven_at)

        held_at = clock.advance(HOUR)
        await settle_failures(store, fence, hold(message))
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
            assert (await reload(store, message)).available_at is None


_TIMEOUT = 10
"""Seconds."""


async def _wait_until_listening(wakeups: Wakeups) -> None:
    """Wait until a wake-up would arrive."""
    async with asyncio.timeout(_TIMEOUT):
        while not wakeups.is_listening:  # noqa: ASYNC110 - the protocol has a flag, no event
            await asyncio.sleep(0.01)


async def _register_asleep(harness: StoreHarness) -> None:
    """Register a sleeping relay: some stores notify only while there is one. Skip the test if no store would."""
    if not harness.wakes:
        pytest.skip("This store wakes nobody.")
    await harness.store.register(replace(sample_relay(), asleep=True), lease=HOUR)


class WakeupContract:
    """`Store.wakeups`."""

    async def test_a_commit_wakes_who_listens(self, harness: StoreHarness) -> None:
        await _register_asleep(harness)
        woken = asyncio.Event()
        async with harness.store.wakeups(woken.set) as wakeups:
            await _wait_until_listening(wakeups)
            for _ in range(3):
                woken.clear()
                await harness.insert([sample(key=NEAR)])
                async with asyncio.timeout(_TIMEOUT):
                    await woken.wait()

    async def test_several_can_listen(self, harness: StoreHarness) -> None:
        await _register_asleep(harness)
        one, other = asyncio.Event(), asyncio.Event()
        second = await harness.open_second()
        async with harness.store.wakeups(one.set) as first, second.wakeups(other.set) as last:
            await _wait_until_listening(first)
            await _wait_until_listening(last)
            one.clear()
            other.clear()
            await harness.insert([sample(key=NEAR)])
            async with asyncio.timeout(_TIMEOUT):
                await one.wait()
                await other.wait()

    async def test_nobody_is_woken_after_the_end(self, harness: StoreHarness) -> None:
        await _register_asleep(harness)
        ended, still = asyncio.Event(), asyncio.Event()
        second = await harness.open_second()
        async with second.wakeups(still.set) as wakeups:
            async with harness.store.wakeups(ended.set):
                pass
            await _wait_until_listening(wakeups)
            ended.clear()
            still.clear()
            await harness.insert([sample(key=NEAR)])
            async with asyncio.timeout(_TIMEOUT):
                await still.wait()
        assert not ended.is_set()
