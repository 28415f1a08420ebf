"""Writes through an `aiomysql` connection, its own or a pool's."""

from __future__ import annotations

from typing import ClassVar

from aiomysql.cursors import Cursor

from pillarbox.writers.mysql import AsyncMysqlWriter

__all__ = ["AiomysqlWriter"]


class AiomysqlWriter(AsyncMysqlWriter):
    """Joins the transaction of an `aiomysql.Connection`, or the one its next statement opens."""

    cursor_class: ClassVar = Cursor
    __slots__ = ()
