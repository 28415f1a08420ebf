"""Lines that a relay adds to the journal: outages, recoveries and takeovers. Beside delivery, and never in its way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from pillarbox.contracts.store import Action, RelayStore
from pillarbox.errors import StoreError
from pillarbox.redaction import redact_line
from pillarbox.telemetry import Telemetry

__all__ = ["Note", "RelayJournal"]

Note: TypeAlias = Callable[[Action, str, str], None]
"""Adds a line to the journal: action, destination, detail. It waits for nothing."""

_MAX_WAITING: Final = 100
"""Most lines that wait to be written. A store that takes none is away, and the oldest of more are dropped."""


class _Line(msgspec.Struct, frozen=True):
    action: Action
    destination: str
    detail: str


class RelayJournal:
    """Writes what a relay noticed into the journal, in a task of its own.

    Nobody waits for it. A line that the store does not take is dropped, and logged by the telemetry.
    """

    def __init__(self, store: RelayStore, relay_id: UUID, *, telemetry: Telemetry) -> None:
        self._store = store
        self._by = str(relay_id)
        self._telemetry = telemetry
        self._lines: deque[_Line] = deque(maxlen=_MAX_WAITING)
        self._added = asyncio.Event()

    def add(self, action: Action, destination: str, detail: str) -> None:
        """Have a line written soon."""
        self._lines.append(_Line(action, destination, redact_line(detail)))
        self._added.set()

    async def run(self) -> None:
        """Write lines as they come, until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self.run_once()

    async def run_once(self) -> None:
        """Write the lines that wait."""
        while self._lines:
            line = self._lines.popleft()
            try:
                await self._store.note(line.action, by=self._by, detail=line.detail, destination=line.destination)
            except StoreError as error:
                self._telemetry.on_store_failed("writing to the journal", error)
