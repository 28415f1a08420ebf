"""What a store does with no more rights than were granted: the same on every server that grants rights."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from pillarbox.contracts.store import Claim, FailedOutcome, Fence, IdleLanes, RelayInfo, Selection, Settlement, Store
from pillarbox.errors import StoreError
from pillarbox.message import Kind, Message, State, Waits, new_message_id
from pillarbox.testing.store_contract.arrange import read_due, read_key

__all__ = ["ALL", "LEASE", "NOW", "live_as_a_relay", "look_as_a_viewer", "message", "move_as_an_operator", "owned"]

LEASE = timedelta(minutes=1)
NOW = timedelta(0)
ALL = Selection()
FAILED = Selection(states=[State.FAILED])
DISCARDED = Selection(states=[State.DISCARDED])


def message(key: str | None = "k") -> Message:
    return Message(
        id=0, message_id=new_message_id(), destination="shop", partition=1, kind=Kind.EVENT, type="t", topic="t",
        key=key, payload=b"p", content_type="c", headers={"a": "b"}, source="s", subject=None, correlation_id="c",
        causation_id=None, event_time=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


async def owned(store: Store, *, lease: timedelta = LEASE) -> Fence:
    """A relay's lane 1."""
    relay = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="v", destinations=["shop"], reachable=["shop"]
    )
    await store.register(relay, lease=lease)
    lanes, _ = await store.take(relay.relay_id, "shop", partitions=[1], lease=LEASE, claim_number=1)
    return Fence(relay.relay_id, "shop", {lane.partition: lane.epoch for lane in lanes})


async def live_as_a_relay(store: Store) -> tuple[Sequence[int], Sequence[int]]:
    """Everything that a relay does, with four messages that wait: their ids, and those that are left."""
    fence = await owned(store)
    read = (await store.read("shop", partitions=[1], cursor=None, limit=10)).messages
    ids = [one.id for one in read]
    await store.claim(fence, Claim(1, ids[:3]), park={one.id: one.message_id for one in read[3:]})
    failed = FailedOutcome(message_id=ids[1], state=State.FAILED, attempts=5, error="no")
    again = FailedOutcome(message_id=ids[2], state=State.PENDING, waits=Waits.RETRY, attempts=1, error="no", delay=NOW)
    await store.settle(fence, Settlement(delivered=ids[:1], failures=[failed, again], finished=[1]))
    await _ask_everything(store)
    assert len(await store.journal()) == 2
    assert await store.renew(fence.relay_id, lease=LEASE, reachable=["shop"], asleep=True)
    await store.pause("shop", by="me", reason="why")
    assert await store.resume("shop", by="me")
    assert await store.purge(State.DELIVERED, older_than=NOW, limit=10) == 1
    assert await store.purge_archived(await store.find(FAILED, limit=10)) == 1
    await store.purge_inbox(older_than=NOW, limit=10)
    await store.purge_journal(older_than=NOW, limit=10)
    await store.record_backlog(fence.relay_id, destinations=["shop"], limit=10)
    await store.note("outage", by="me", detail="down", destination="shop")
    for _ in range(2):
        await store.mark_lanes(fence.relay_id)
    await store.release(fence)
    await store.leave(fence.relay_id)
    await store.forget(stale_after=NOW)
    return ids, [one.id for one in await store.find(ALL, limit=10)]


async def _ask_everything(store: Store) -> None:
    await store.registry(lease=LEASE)
    await read_due(store, 1, destination="shop", limit=10)
    await read_key(store, "k", partition=1, destination="shop", limit=10)
    await store.blocked_keys("shop", partitions=[1])
    await store.next_due("shop", partitions=[1])
    read = await store.read("shop", partitions=[1], cursor=None, limit=10)
    await store.peek({"shop": IdleLanes([1], read.cursor)})
    await store.pauses()
    await store.requests()
    await store.counts()


async def move_as_an_operator(store: Store) -> None:
    """Everything that a person does, with three messages that wait."""
    assert (await store.defer(ALL, until=datetime.now(UTC), by="me", limit=10)).count == 3
    assert (await store.discard(ALL, by="me", reason="why", limit=3)).count == 3
    discarded = await store.find(DISCARDED, limit=3)
    assert await store.purge_archived(discarded) == 3
    assert await store.restore(discarded, by="me") == 3
    assert (await store.redrive(DISCARDED, by="me", limit=3, to="elsewhere")).count == 3
    assert (await store.replay(ALL, by="me", limit=3)).count == 0
    await owned(store)
    for _ in range(2):
        assert await store.probe("shop", by="me")


async def look_as_a_viewer(store: Store) -> None:
    """Everything that one may see, of one message that waits, and its payload, which one may not."""
    assert [count.count for count in await store.counts()] == [1]
    assert [one.payload for one in await store.find(ALL, limit=10, payloads=False)] == [b""]
    await store.registry(lease=LEASE)
    await store.pauses()
    await store.journal()
    await store.journal(messages=False, by="me")
    await store.failure_groups()
    await store.count_tries([message()])
    await store.count_blocked("shop")
    await store.inbox_records(["m1"])
    await store.rollups(window=LEASE, step=timedelta(minutes=5))
    assert await store.tables()
    assert await store.count(Selection(fingerprint="x")) == 0
    with pytest.raises(StoreError, match="denied"):
        await store.find(ALL, limit=10)
