"""A savepoint that tells whether a MySQL transaction is still the one that it was set in.

Where PostgreSQL refuses to go on, MariaDB and MySQL begin anew without a word: after a deadlock, which rolls everything
back, after a statement that commits, such as CREATE TABLE, and after a ROLLBACK. The savepoint is gone then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["RELEASE", "SET", "executor"]

SET: Final = "savepoint pillarbox_handler"
RELEASE: Final = "release savepoint pillarbox_handler"

_DIALECTS: Final = ("mysql", "mariadb")
_DRIVERS: Final = {"pymysql.connections", "MySQLdb.connections", "asyncmy.connection", "aiomysql.connection"}


def executor(tx: Any) -> Callable[[str], Any] | None:
    """What executes SQL on a handle of MariaDB or MySQL, to be awaited if the handle's methods are; None on others."""
    if hasattr(tx, "get_bind"):
        tx = tx.connection()
    if hasattr(tx, "exec_driver_sql"):
        return tx.exec_driver_sql if tx.dialect.name in _DIALECTS else None
    if hasattr(tx, "in_atomic_block"):
        tx = tx.connection
    modules = {cls.__module__ for cls in type(tx).__mro__}
    return tx.query if modules & _DRIVERS else None
