"""Writes through a `pymysql` connection."""

from __future__ import annotations

from typing import ClassVar

from pymysql.cursors import Cursor

from pillarbox.writers.mysql import MysqlWriter

__all__ = ["PymysqlWriter"]


class PymysqlWriter(MysqlWriter):
    """Joins the transaction of a `pymysql.Connection`, or the one its next statement opens."""

    cursor_class: ClassVar = Cursor
    __slots__ = ()
