"""What the parts of the SQLite store share."""

from __future__ import annotations

from pillarbox.stores.keeping import Keep
from pillarbox.stores.sqlite.connection import Database

__all__ = ["Parts"]


class Parts:
    """The database and what the store was told: what each part stands on."""

    _database: Database
    _keep: Keep
