"""Looking at the file and its disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from pillarbox.protocols import Finding
from pillarbox.stores.sqlite.connection import Database
from pillarbox.stores.sqlite.facts import SqliteFacts, findings_of

__all__ = ["Inspecting"]


class Inspecting:
    """The inspecting part of the store."""

    _database: Database

    async def inspect(self) -> Sequence[Finding]:
        """What is set, or in short supply, that could lose or delay messages. Changes nothing."""
        return findings_of(await self.facts())

    async def facts(self) -> SqliteFacts:
        """What the findings are drawn from."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> SqliteFacts:
        path = self._database.path
        log = path.with_name(f"{path.name}-wal")
        disk = os.statvfs(path)
        return SqliteFacts(
            path=path,
            synchronous=self._database.synchronous,
            free=disk.f_bavail * disk.f_frsize,
            log_size=log.stat().st_size if log.exists() else 0,
        )
