"""Writes through an `asyncmy` connection, its own or a pool's."""

from __future__ import annotations

from typing import ClassVar

from asyncmy.cursors import Cursor

from pillarbox.writers.mysql import AsyncMysqlWriter

__all__ = ["AsyncmyWriter"]


class AsyncmyWriter(AsyncMysqlWriter):
    """Joins the transaction of an `asyncmy.Connection`, or the one its next statement opens."""

    cursor_class: ClassVar = Cursor
    __slots__ = ()
