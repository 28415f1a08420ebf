"""Sample records of an inbox."""

from __future__ import annotations

from pillarbox.names import Names
from pillarbox.protocols import Fail

__all__ = ["inbox_failure"]


def inbox_failure(names: Names, consumer: str, message_id: str, error: str, content: bytes) -> Fail:
    """A message of the source /shop that failed after 3 attempts."""
    return Fail(
        names=names, consumer=consumer, source="/shop", message_id=message_id, attempts=3, error=error, message=content
    )
