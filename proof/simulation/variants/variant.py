"""A broken variant of a relay or a store, patched in from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from proof.simulation.checker import Promise, Violation

__all__ = ["Changes", "Replace", "Variant"]

Replace = Callable[[object, str, Any], None]
"""Replaces an attribute of a class or module while the variant is applied."""
Changes = dict[Callable[[Replace], None], tuple[Promise, ...]]
"""Mistakes, each with the promises that it breaks."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One mistake that could be made. `change` makes it, and its docstring says what is wrong."""

    change: Callable[[Replace], None]
    shows: tuple[Promise, ...]
    """The promises that it breaks: a seed that shows another one does not catch it."""

    @property
    def name(self) -> str:
        return self.change.__name__.replace("_", " ")

    @property
    def description(self) -> str:
        return (self.change.__doc__ or "").strip()

    def find_breach(self, violations: Iterable[Violation]) -> Violation | None:
        """Return the first violation of a promise that this mistake breaks."""
        return next((violation for violation in violations if violation.promise in self.shows), None)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Apply the variant while the block runs."""
        with ExitStack() as patches:
            self.change(lambda owner, name, new: patches.enter_context(patch.object(owner, name, new)))
            yield
