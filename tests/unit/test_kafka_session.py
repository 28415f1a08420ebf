"""A membership in a Kafka group as the event loop sees it: revoked partitions, and what is held."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.brokers.held_bytes import HeldBytes
from pillarbox.brokers.kafka.encoding import ConsumedRecord
from pillarbox.brokers.kafka.offsets import PartitionProgress
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
