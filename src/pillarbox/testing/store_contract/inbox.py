"""Messages that a consumer could not handle are seen, handled again or closed by a person."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.journal import Action
from pillarbox.protocols import InboxSelection, Store
from pillarbox.testing.harness import StoreHarness

__all__ = ["InboxContract"]

_ALL = InboxSelection()


async def _failed(store: Store, selection: InboxSelection = _ALL, *, limit: int = 100) -> list[tuple[str, str]]:
    return [(one.consumer, one.message_id) for one in await store.inbox_failures(selection, limit=limit)]


class InboxContract:
    """`Store.inbox_failures`, `redrive_inbox` and `discard_inbox`."""

    async def test_a_failed_message_of_an_inbox_is_seen_whole(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", error="ValueError: no such account", content=b"\x00all that came")
        (one,) = await harness.store.inbox_failures(_ALL, limit=10)
        assert (one.consumer, one.source, one.message_id) == ("mailer", "/shop", "m1")
        assert (one.attempts, one.error, one.content) == (3, "ValueError: no such account", b"\x00all that came")

    async def test_failures_of_an_inbox_are_chosen_by_consumer_id_and_error(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", error="Timeout", content=b"1")
        await harness.fail_inbox("mailer", "m2", error="ValueError: NO", content=b"2")
        await harness.fail_inbox("biller", "m1", error="timeout again", content=b"3")
        store = harness.store
        assert sorted(await _failed(store, InboxSelection(consumer="mailer"))) == [("mailer", "m1"), ("mailer", "m2")]
        assert sorted(await _failed(store, InboxSelection(message_ids=["m1"]))) == [("biller", "m1"), ("mailer", "m1")]
        assert sorted(await _failed(store, InboxSelection(error="TIMEOUT"))) == [("biller", "m1"), ("mailer", "m1")]
        assert await _failed(store, InboxSelection(consumer="mailer", error="no")) == [("mailer", "m2")]
        assert len(await _failed(store, limit=2)) == 2

    async def test_a_redriven_one_is_no_longer_failed_and_is_journalled(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        await harness.fail_inbox("mailer", "m2", content=b"2")
        redriven = await harness.store.redrive_inbox(InboxSelection(message_ids=["m1"]), by="ann", limit=10)
        assert redriven == 1
        assert await _failed(harness.store) == [("mailer", "m2")]
        (line,) = await harness.store.journal()
        assert (line.action, line.by, line.destination) == (Action.REDRIVEN, "ann", "inbox:mailer")
        assert "m1" in (line.detail or "")
        assert await harness.accept("mailer", "/shop", "m1")

    async def test_no_more_than_asked_for_are_redriven(self, harness: StoreHarness) -> None:
        for number in range(3):
            await harness.fail_inbox("mailer", f"m{number}", content=b"x")
        assert await harness.store.redrive_inbox(_ALL, by="ann", limit=2) == 2
        assert len(await _failed(harness.store)) == 1

    async def test_a_discarded_one_is_done(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        assert await harness.store.discard_inbox(_ALL, by="ann", reason="by hand", limit=10) == 1
        assert await _failed(harness.store) == []
        assert not await harness.accept("mailer", "/shop", "m1")
        (line,) = await harness.store.journal()
        assert (line.action, line.by, line.error) == (Action.DISCARDED, "ann", "by hand")

    async def test_retention_leaves_failed_ones_alone(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        harness.clock.advance(timedelta(days=400))
        assert await harness.store.purge_inbox(older_than=timedelta(days=1), limit=10) == 0
        assert await _failed(harness.store) == [("mailer", "m1")]
