"""SQLite store: the standard library's driver, nothing to install."""

from __future__ import annotations

from pillarbox.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
