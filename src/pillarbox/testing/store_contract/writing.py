"""What is committed is there, whole and in order; what is not is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from pillarbox.message import Kind, Message, State, Waits
from pillarbox.protocols import Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import FAR, HOUR, LANE, MANY, NEAR, SECOND, close, ids, own, put, stored

__all__ = ["WritingContract"]

_WRITTEN = (
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


def _written(message: Message) -> list[object]:
    return [getattr(message, name) for name in _WRITTEN]


def _rich() -> Message:
    return sample(
        key="Zürich/\u6771\u4eac 'quoted\" \\ %_\U0001f4ee",
        destination="Orders.v2_x-1",
        topic="ünï/çødé",
        type="orders.placed.v2",
        kind=Kind.COMMAND,
        payload=bytes(range(256)) * 3,
        content_type="application/octet-stream",
        headers={"traceparent": "00-ab-cd-01", "näme": "välue \U0001f600 \"'\\", "empty": ""},
        source="/shöp?x=1",
        subject="sübject",
        correlation_id="cörrelation",
        causation_id="cäusation",
        event_time=datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    )


def _bare() -> Message:
    return sample(key=None, payload=b"", headers={}, subject=None, causation_id=None)


class WritingContract:
    """The way in, seen from the store."""

    async def test_every_field_comes_back_as_it_was_written(self, harness: StoreHarness) -> None:
        for written in (_rich(), _bare()):
            (found,) = await put(harness, written)
            assert _written(found) == _written(written)
            assert isinstance(found.kind, Kind)
            assert isinstance(found.payload, bytes)
            assert dict(found.headers) == dict(written.headers)

    async def test_a_read_returns_every_field_too(self, harness: StoreHarness) -> None:
        for written in (_rich(), _bare()):
            (found,) = await put(harness, written)
            reading = await harness.store.read(found.destination, partitions=[found.partition], cursor=None, limit=MANY)
            assert list(reading.messages) == [found]

    async def test_every_field_survives_its_closing(self, harness: StoreHarness) -> None:
        for written in (_rich(), _bare()):
            (before,) = await put(harness, written)
            fence = await own(harness.store, before.partition, destination=before.destination)
            closed = await close(harness.store, fence, before, State.DELIVERED)
            assert _written(closed) == _written(written)
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
        assert ids(found) == sorted(set(ids(found)))

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
            assert list(await store.read_due("orders", partitions=[LANE], limit=MANY)) == []
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
        for number, message in enumerate((first, last), start=1):
            await close(harness.store, fence, message, State.DELIVERED, number=number)
        assert await harness.store.purge_ids([first.id, last.id]) == 2
        (after,) = await put(harness, sample(key=NEAR))
        assert after.id > last.id

    async def test_an_id_does_not_come_again_after_a_restart(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        await close(harness.store, fence, first, State.DELIVERED)
        await harness.store.purge_ids([first.id])
        store = await harness.restart()
        await harness.insert([sample(key=NEAR)])
        (after,) = await store.find(Selection(), limit=MANY)
        assert after.id > first.id

    async def test_committed_messages_survive_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, _rich())
        assert await stored(await harness.restart(), message) == message
