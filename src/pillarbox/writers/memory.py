"""Writer for transactions of the memory store, which are writers themselves."""

from __future__ import annotations

from typing import ClassVar

from pillarbox.contracts.writer import Writer

__all__ = ["memory_writer"]


class _MemoryWriter:
    is_async: ClassVar = False

    def __call__(self, tx: Writer, /) -> Writer:
        return tx


memory_writer = _MemoryWriter()
