"""Sample values for tests: valid, small, and different where they must be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count, islice
from uuid import UUID, uuid4

from pillarbox.contracts.store import RelayInfo
from pillarbox.message import Kind, Message, compute_partition, new_message_id

__all__ = ["find_key", "sample", "sample_relay"]

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
    """Build a message as an outbox hands it to a writer: with a new id, in the partition of its key."""
    message_id = new_message_id() if message_id is None else message_id
    return Message(
        id=0,
        message_id=message_id,
        destination=destination,
        partition=compute_partition(key, message_id),
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


def find_key(partition: int, *, nth: int = 0) -> str:
    """Find a key that hashes into this partition; another one for each `nth`."""
    keys = (key for number in count() if compute_partition(key := f"key-{number}", UUID(int=0)) == partition)
    return next(islice(keys, nth, None))


def sample_relay(*, relay_id: UUID | None = None, destination: str = "orders") -> RelayInfo:
    """Build a relay that serves one destination and reaches it."""
    return RelayInfo(
        relay_id=uuid4() if relay_id is None else relay_id,
        service="shop",
        host="host-1",
        pid=4711,
        version="1.2.3",
        destinations=[destination],
        reachable=[destination],
    )
