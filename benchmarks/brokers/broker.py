"""What a broker must bring to be measured: its bare client, and a far side that can be emptied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from pillarbox.contracts.transport import Transport

__all__ = ["Broker", "Row", "written_out"]


class Row(NamedTuple):
    """What a straight line reads of a message, in the order of its columns."""

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
    """One broker. Everything it makes there is its own, and gone when it is closed."""

    name: str
    """As in `make bench ONLY=…`."""
    messages: int
    """How many a run delivers: some seconds' worth."""

    async def open(self) -> None:
        """Connect the bare client, and make the place where messages go."""

    async def close(self) -> None:
        """Remove that place, and disconnect."""

    async def send(self, rows: Sequence[Row]) -> None:
        """All of them at once, by the bare client, with the safety that the transport has; raises unless the broker
        acknowledged every one. The records are those that the transport sends."""

    async def empty(self) -> None:
        """Let go of what has arrived, so that nothing fills up; raises if there is not the expected number."""

    def transport(self) -> Transport:
        """Ours, with default settings, to the same place."""


def written_out(prefix: str) -> Callable[[Row], dict[str, str]]:
    """Makes the CloudEvents attributes of a row as somebody would who writes them out by hand."""
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
