"""What the parts of the PostgreSQL store share."""

from __future__ import annotations

from datetime import datetime

from pillarbox.clock import Clock
from pillarbox.names import Names
from pillarbox.stores.keeping import Keep
from pillarbox.stores.postgres.connection import Database
from pillarbox.stores.sql import Statements

__all__ = ["Parts"]


class Parts:
    """Connections, statements and the clock: what each part of the store stands on."""

    _database: Database
    _sql: Statements
    _names: Names
    _url: str
    _clock: Clock | None
    _keep: Keep

    def _now(self) -> datetime | None:
        """The injected clock's time, or None: then the statement asks the database."""
        return None if self._clock is None else self._clock.now()
