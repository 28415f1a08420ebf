"""What the doctor finds at destinations: looked up when somebody opens a page, at most once in some minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.finding import Finding
from pillarbox.operations.doctor import TimeLimit, examine_destination
from pillarbox.relay.configuration import ConfiguredDestination
from pillarbox.tasks import cancel_all

__all__ = ["DestinationFindings", "Examinations"]

_KEPT: Final = 300.0
"""Seconds for which findings are shown: whoever opens a page must not make the dashboard connect each time."""
_PATIENCE: Final = 0.1
"""Seconds that a page waits for an examination. The next look at it has the rest."""
_LIMIT: Final = timedelta(seconds=10)


class DestinationFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at one destination."""

    findings: Sequence[Finding]
    at: datetime
    """When, by this machine's clock."""


class Examinations:
    """Connects to configured destinations as the doctor does, and keeps what it found. Nothing is sent."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[float, DestinationFindings]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def get(
        self, one: ConfiguredDestination, *, store: str, topics: Sequence[str], fresh: bool = False
    ) -> DestinationFindings | None:
        """Return what was found of late; None while it is being looked up for the first time."""
        key = store, one.name
        known = self._found.get(key)
        if fresh or known is None or time.monotonic() - known[0] > _KEPT:
            task = self._tasks.get(key)
            if task is None:
                task = self._tasks[key] = asyncio.create_task(self._examine(key, one, topics))
            await asyncio.wait({task}, timeout=_LIMIT.total_seconds() if fresh else _PATIENCE)
        found = self._found.get(key)
        return None if found is None else found[1]

    async def _examine(self, key: tuple[str, str], one: ConfiguredDestination, topics: Sequence[str]) -> None:
        async def read_topics() -> Sequence[str]:
            return topics

        try:
            findings = await examine_destination(
                one.transport_options.build_transport, topics=read_topics, limit=TimeLimit(_LIMIT)
            )
            self._found[key] = time.monotonic(), DestinationFindings(findings=findings, at=datetime.now(UTC))
        finally:
            self._tasks.pop(key, None)

    async def close(self) -> None:
        """End every examination that is under way."""
        await cancel_all(self._tasks.values())
