"""What may have been meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known word; or all of them, when none is near."""
    words = sorted(known)
    if near := get_close_matches(word, words, n=1):
        return f"the nearest known is {near[0]}"
    return f"known are {', '.join(words)}"
