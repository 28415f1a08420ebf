"""Sample values for tests: valid, small, each different where it must be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from uuid import UUID, uuid4

from pillarbox.message import Kind, Message, new_message_id, partition_of
from pillarbox.protocols import RelayInfo

__all__ = ["key_in", "sample", "sample_relay"]

_HAPPENED = datetime(2025, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)


def sample(
    *,
    key: str | None = "customer-1",
    destination: str = "orders",
    topic: str = "orders",
    type: str = "orders.placed",
    kind: Kind = Kind.EVENT,
    payload: bytes = b'{"order_id": 1}',
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
    source: str = "/shop",
    subject: str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    event_time: datetime = _HAPPENED,
    available_at: datetime | None = None,
    message_id: UUID | None = None,
) -> Message:
    """A message as an outbox hands it to a writer: with a new id of its own, and in the partition of its key."""
    message_id = new_message_id() if message_id is None else message_id
    return Message(
        id=0,
        message_id=message_id,
        destination=destination,
        partition=partition_of(key, message_id),
        kind=kind,
        type=type,
        topic=topic,
        key=key,
        payload=payload,
        content_type=content_type,
        headers={} if headers is None else headers,
        source=source,
        subject=subject,
        correlation_id=str(message_id) if correlation_id is None else correlation_id,
        causation_id=causation_id,
        event_time=event_time,
        available_at=available_at,
    )


def key_in(partition: int, *, nth: int = 0) -> str:
    """A key that hashes into this partition; for each `nth` another one."""
    keys = (key for number in count() if partition_of(key := f"key-{number}", UUID(int=0)) == partition)
    return next(key for place, key in enumerate(keys) if place == nth)


def sample_relay(*, relay_id: UUID | None = None, destination: str = "orders") -> RelayInfo:
    """A relay that serves one destination and reaches it."""
    return RelayInfo(
        relay_id=uuid4() if relay_id is None else relay_id,
        service="shop",
        host="host-1",
        pid=4711,
        version="1.2.3",
        destinations=[destination],
        reachable=[destination],
    )
