"""A consumer over a memory queue, and messages for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import ConsumerSettings
from pillarbox.events import Types
from pillarbox.retry import RetryPolicy

__all__ = ["PATIENCE", "QUICK", "TYPES", "Ticked", "tick", "until"]

PATIENCE: Final = 60.0
TYPES: Final = Types()


@TYPES.event("tick", key="key")
@dataclass
class Ticked:
    number: int
    key: str | None = None


QUICK: Final = ConsumerSettings(
    retry=RetryPolicy(attempts=3, first=timedelta(milliseconds=5), jitter=0.0),
    poll_interval=timedelta(milliseconds=20),
    stop_timeout=timedelta(seconds=5),
)


def tick(number: int, key: str | None = None, *, type: str = "tick", payload: bytes | None = None) -> CloudEvent:
    body = b'{"number": %d, "key": %s}' % (number, b"null" if key is None else b'"%s"' % key.encode())
    return CloudEvent(
        message_id=f"m{number}",
        source="/clock",
        type=type,
        topic="ticks",
        key=key,
        payload=body if payload is None else payload,
        correlation_id="c",
    )


async def until(true: Callable[[], Any], *, within: float = PATIENCE) -> None:
    """Wait for a condition, sync or async, and fail when it never holds."""
    async with asyncio.timeout(within):
        while True:
            answer = true()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.01)
