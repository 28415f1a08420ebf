"""The store on MariaDB and MySQL."""

from __future__ import annotations

from pillarbox.stores.mariadb.store import MariadbStore

__all__ = ["MariadbStore"]
