"""What a benchmark needs of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from pillarbox.contracts.transport import Transport

__all__ = ["Broker", "Row", "make_attribute_builder"]


class Row(NamedTuple):
    """The columns of a message that the bare loop reads, in their order."""

    id: int
    message_id: UUID
    kind: str
    type: str
    topic: str
    key: str
    payload: bytes
    content_type: str
    source: str
    correlation_id: str
    event_time: datetime


class Broker(Protocol):
    """A broker to send to. It makes its own queue or stream, and removes it when it is closed."""

    name: str
    """Its name in `make bench ONLY=…`."""
    messages: int
    """How many messages a run delivers: enough for some seconds."""

    async def open(self) -> None:
        """Connect the bare client, and create the queue or stream."""

    async def close(self) -> None:
        """Delete it, and disconnect."""

    async def send(self, rows: Sequence[Row]) -> None:
        """All of them at once, by the bare client, with the safety that the transport has; raises unless the broker
        acknowledged every one. The records are those that the transport sends."""

    async def empty(self) -> None:
        """Remove what has arrived, so that nothing fills up."""

    def transport(self) -> Transport:
        """Return our transport to the same queue or stream, with default settings."""


def make_attribute_builder(prefix: str) -> Callable[[Row], dict[str, str]]:
    """Return a function that builds the CloudEvents attributes of a row, as one would write it by hand."""
    version, id_, source, type_, time, key, correlation, topic, kind = (
        f"{prefix}{name}"
        for name in ("specversion", "id", "source", "type", "time", "partitionkey", "correlationid", "topic", "kind")
    )

    def attributes(row: Row) -> dict[str, str]:
        return {
            version: "1.0",
            id_: str(row.message_id),
            source: row.source,
            type_: row.type,
            time: row.event_time.isoformat(),
            key: row.key,
            correlation: row.correlation_id,
            topic: row.topic,
            kind: row.kind,
        }

    return attributes
