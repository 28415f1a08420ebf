"""When a store cannot be had."""

from __future__ import annotations

__all__ = ["Unserved"]


class Unserved(Exception):
    """There is no such server here. The text is a sentence for people."""
