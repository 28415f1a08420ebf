"""Writes through a connection of mysqlclient, whose module is `MySQLdb`."""

from __future__ import annotations

from typing import ClassVar

from MySQLdb.cursors import Cursor

from pillarbox.errors import NotInTransaction
from pillarbox.writers.mysql import MysqlWriter

__all__ = ["MysqldbWriter"]


class MysqldbWriter(MysqlWriter):
    """Joins the transaction of a `MySQLdb.Connection`, or the one its next statement opens."""

    cursor_class: ClassVar = Cursor
    __slots__ = ()

    def check(self) -> None:
        """This driver does not tell whether a transaction is open, so that autocommit is always refused."""
        if self._tx.get_autocommit():
            raise NotInTransaction(
                "This MySQLdb connection is in autocommit mode, so the message may be committed on its own: call "
                "connection.autocommit(False), and commit() at the end."
            )
