"""A membership in a Kafka group as the event loop sees it: revoked partitions, and what is held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from pillarbox.brokers.held_bytes import HeldBytes
from pillarbox.brokers.kafka.encoding import ConsumedRecord
from pillarbox.brokers.kafka.offsets import PartitionProgress
from pillarbox.brokers.kafka.poller import ConsumerPoller
from pillarbox.brokers.kafka.receiver import ConsumerSession
from pillarbox.errors import TransportUnavailable


def build(held: HeldBytes) -> ConsumerSession:
    return ConsumerSession(where="Kafka at k:9092", hide=str, held=held)


def record(progress: PartitionProgress, offset: int) -> ConsumedRecord:
    message: Any = b"x" * 10
    return ConsumedRecord(progress, offset, message, False)


async def test_records_of_a_revoked_partition_are_not_handed_out() -> None:
    held = HeldBytes()
    session = build(held)
    ours, lost = PartitionProgress("orders", 0, mark=0), PartitionProgress("orders", 1, mark=0)
    session.on_records([record(lost, 0), record(ours, 0), record(lost, 1), record(ours, 1)])
    lost.is_assigned = False
    session.on_revoked()
    taken = await session.receive(10)
    assert [(one.progress, one.offset) for one in taken] == [(ours, 0), (ours, 1)]
    assert held.size == 20


async def test_a_record_that_was_handed_out_and_then_revoked_is_neither_settled_nor_given_back() -> None:
    held = HeldBytes()
    session = build(held)
    lost = PartitionProgress("orders", 0, mark=0)
    session.on_records([record(lost, 0)])
    (taken,) = await session.receive(1)
    lost.is_assigned = False
    session.on_revoked()
    await session.acknowledge(taken)  # there is no poller that could be asked to settle it
    await session.give_back(taken)
    assert not session._waiting


async def test_what_waits_when_a_membership_ends_is_not_held() -> None:
    held = HeldBytes()
    session = build(held)
    session.on_records([record(PartitionProgress("orders", 0, mark=0), 0)])
    session.on_closed("it was closed")
    assert held.size == 0
    with pytest.raises(TransportUnavailable, match="it was closed"):
        await session.receive(1)


async def test_a_poller_forgets_what_it_fetched_of_a_lost_partition() -> None:
    """Nothing raises the mark of such a partition any more: its records would take the room of others for ever."""
    poller = object.__new__(ConsumerPoller)  # without the thread, and without a client
    ours, lost = PartitionProgress("orders", 0, mark=0), PartitionProgress("orders", 1, mark=0)
    poller._loop, poller._callbacks = asyncio.get_running_loop(), build(HeldBytes())
    poller._partitions = {("orders", 0): ours, ("orders", 1): lost}
    poller._fetched = [record(lost, 0), record(ours, 0)]
    poller._settling = []
    client: Any = None
    poller._on_lost(client, [TopicPartition("orders", 1)])
    assert [(one.progress, one.offset) for one in poller._fetched] == [(ours, 0)]
    assert (lost.is_assigned, list(poller._partitions)) == (False, [("orders", 0)])


@pytest.mark.parametrize("has_failed", [False, True])
async def test_what_is_settled_is_committed_when_its_partition_is_revoked(has_failed: bool) -> None:
    """Its next owner would get all of it again. A membership that has failed may not own it any more."""
    committed: list[tuple[str | None, int | None, int]] = []

    class Client:
        def commit(self, *, offsets: list[TopicPartition], **_: object) -> None:
            committed.extend((one.topic, one.partition, one.offset) for one in offsets)

    poller = object.__new__(ConsumerPoller)  # without the thread
    ours, lost = PartitionProgress("orders", 0, mark=0), PartitionProgress("orders", 1, mark=0)
    for progress in (ours, lost):
        progress.add(0)
        progress.add(1)
        progress.settle(0)
    client: Any = Client()
    poller._consumer = client
    poller._loop, poller._callbacks = asyncio.get_running_loop(), build(HeldBytes())
    poller._partitions = {("orders", 0): ours, ("orders", 1): lost}
    poller._fetched, poller._settling, poller._commits_in_progress = [], [], 0
    poller._is_closed, poller._failure = False, "it broke" if has_failed else None
    poller._on_revoke(client, [TopicPartition("orders", 1)])
    assert committed == ([] if has_failed else [("orders", 1, 1)])
    assert not lost.is_assigned


async def test_a_record_that_is_given_back_comes_again_before_the_later_ones() -> None:
    session = build(HeldBytes())
    progress = PartitionProgress("orders", 0, mark=0)
    session.on_records([record(progress, 0), record(progress, 1)])
    (first,) = await session.receive(1)
    await session.give_back(first)
    again = await session.receive(10)
    assert [(one.offset, one.redelivered) for one in again] == [(0, True), (1, False)]
