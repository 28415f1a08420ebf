"""The journal: what went wrong, what people did, by whom and when; nothing on the happy path. And pauses."""

from __future__ import annotations

from pillarbox.message import State, Waits
from pillarbox.protocols import Entry, Pause, Selection, Trouble
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
    own,
    put,
    retry,
    settled,
)

__all__ = ["JournalContract"]


class JournalContract:
    """`Store.journal`, `Store.note`, `Store.pause`, `Store.resume` and `Store.pauses`."""

    async def test_what_is_done_to_the_whole_store_leaves_a_line(self, harness: StoreHarness) -> None:
        now = harness.clock.advance(HOUR)
        await harness.store.note("purged", by="ann", detail="3 delivered ü")
        assert list(await harness.store.journal()) == [
            Entry(message_id=None, destination="*", action="purged", at=now, by="ann", detail="3 delivered ü")
        ]

    async def test_the_happy_path_leaves_no_line(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        assert list(await harness.store.journal()) == []

    async def test_every_trouble_leaves_a_line(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        for action, state, waits in (
            ("attempt_failed", State.PENDING, Waits.RETRY),
            ("held", State.PENDING, Waits.HELD),
            ("deferred", State.PENDING, Waits.DEFERRED),
            ("failed", State.FAILED, None),
            ("skipped", State.SKIPPED, None),
            ("discarded", State.DISCARDED, None),
        ):
            (message,) = await put(harness, sample(key=NEAR))
            trouble = Trouble(
                message_id=message.id, state=state, waits=waits, attempts=3, error="HTTP 500 ü",
                detail="Traceback:\n  line 1", delay=LEASE if waits in (Waits.RETRY, Waits.DEFERRED) else None,
            )  # fmt: skip
            await settled(store, fence, trouble)
            assert list(await store.journal(message_id=message.message_id)) == [
                Entry(
                    message_id=message.message_id, destination="orders", action=action, at=now,
                    by=str(fence.relay_id), attempt=3, error="HTTP 500 ü", detail="Traceback:\n  line 1",
                )
            ]  # fmt: skip

    async def test_operators_are_named_with_the_time(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        one = Selection(ids=[message.id])
        expected = []

        def told(action: str, by: str) -> None:
            expected.append((message.message_id, "orders", action, by, harness.clock.now()))
            harness.clock.advance(HOUR)

        await store.defer(one, until=harness.clock.now(), by="ann", limit=1)
        told("deferred", "ann")
        await settled(store, fence, fail(message))
        told("failed", str(fence.relay_id))
        await store.redrive(one, by="bob", limit=1)
        told("redriven", "bob")
        await close(store, fence, message, State.DELIVERED)
        await store.replay(one, by="cleo", limit=1)
        told("replayed", "cleo")
        await store.discard(one, by="dörte", reason="enough", limit=1)
        told("discarded", "dörte")
        lines = await store.journal(message_id=message.message_id)
        assert [(line.message_id, line.destination, line.action, line.by, line.at) for line in lines] == expected
        assert "enough" in (lines[-1].error, lines[-1].detail)

    async def test_a_redrive_to_elsewhere_is_written_down_too(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await settled(store, await own(store, LANE), fail(message))
        await store.redrive(Selection(), by="ann", limit=MANY, to="spare")
        lines = await store.journal(message_id=message.message_id)
        assert [(line.action, line.by) for line in lines][1:] == [("redriven", "ann")]

    async def test_each_message_of_a_batch_has_its_line(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await harness.store.discard(Selection(), by="ann", reason="no", limit=MANY)
        lines = await harness.store.journal()
        assert sorted(str(line.message_id) for line in lines) == sorted(str(one.message_id) for one in messages)

    async def test_lines_come_oldest_first_and_the_latest_of_them(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for attempt in range(1, 6):
            await settled(store, fence, retry(message, attempts=attempt, delay=None))
            harness.clock.advance(LEASE)
        assert [line.attempt for line in await store.journal()] == [1, 2, 3, 4, 5]
        assert [line.attempt for line in await store.journal(limit=2)] == [4, 5]

    async def test_the_journal_of_one_message_is_its_own(self, harness: StoreHarness) -> None:
        store = harness.store
        one, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settled(store, await own(store, LANE), retry(one), fail(other))
        lines = await store.journal(message_id=one.message_id)
        assert [(line.message_id, line.action) for line in lines] == [(one.message_id, "attempt_failed")]

    async def test_one_message_has_a_journal_over_all_its_destinations(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        for message in await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id)):
            await settled(store, await own(store, LANE, destination=message.destination), fail(message))
        lines = await store.journal(message_id=first.message_id)
        assert [line.destination for line in lines] == ["orders", "billing"]

    async def test_a_destination_is_paused_and_resumed(self, harness: StoreHarness) -> None:
        store, paused_at = harness.store, harness.clock.now()
        await store.pause("orders", by="ann", reason="müll")
        await store.pause("billing", by="bob", reason="too")
        pauses = sorted(await store.pauses(), key=lambda pause: pause.destination)
        assert pauses == [
            Pause(destination="billing", by="bob", at=paused_at, reason="too"),
            Pause(destination="orders", by="ann", at=paused_at, reason="müll"),
        ]
        resumed_at = harness.clock.advance(HOUR)
        assert await store.resume("orders", by="cleo")
        assert [pause.destination for pause in await store.pauses()] == ["billing"]
        lines = [line for line in await store.journal() if line.destination == "orders"]
        assert [(line.message_id, line.action, line.by, line.at) for line in lines] == [
            (None, "paused", "ann", paused_at),
            (None, "resumed", "cleo", resumed_at),
        ]
        assert "müll" in (lines[0].error, lines[0].detail)

    async def test_a_second_pause_keeps_the_first_ones_word(self, harness: StoreHarness) -> None:
        store = harness.store
        await store.pause("orders", by="ann", reason="first")
        before = await store.pauses(), await store.journal()
        harness.clock.advance(HOUR)
        await store.pause("orders", by="bob", reason="second")
        assert (await store.pauses(), await store.journal()) == before

    async def test_resuming_what_is_not_paused_is_false(self, harness: StoreHarness) -> None:
        store = harness.store
        assert not await store.resume("orders", by="ann")
        await store.pause("orders", by="ann", reason="r")
        assert await store.resume("orders", by="ann")
        assert not await store.resume("orders", by="ann")
        assert [line.action for line in await store.journal()] == ["paused", "resumed"]

    async def test_a_pause_survives_a_restart_and_touches_no_message(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.pause("orders", by="ann", reason="r")
        store = await harness.restart()
        assert [pause.destination for pause in await store.pauses()] == ["orders"]
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == [message]
