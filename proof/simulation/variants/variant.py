"""A relay or a store that is broken on purpose, switched in from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

__all__ = ["Switch", "Variant"]

Switch = Callable[[object, str, Any], None]
"""Puts something else in the place of a class's attribute, until the variant is switched out."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One fault that somebody might make. `breaks` is a function that makes it; its docstring says what is wrong."""

    breaks: Callable[[Switch], None]

    @property
    def name(self) -> str:
        return self.breaks.__name__.replace("_", " ")

    @property
    def wrong(self) -> str:
        return (self.breaks.__doc__ or "").strip()

    @contextmanager
    def switched_in(self) -> Iterator[None]:
        """While the block runs, everything is broken in this way."""
        with ExitStack() as patches:
            self.breaks(lambda owner, name, new: patches.enter_context(patch.object(owner, name, new)))
            yield
