"""A selection as SQL conditions, the same for every dialect but for how values are bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pillarbox.protocols import Selection

__all__ = ["Binder", "conditions"]


class Binder(Protocol):
    """Collects parameters and writes the places where they stand."""

    def value(self, value: object) -> str:
        """The placeholder for one value."""

    def any_of(self, column: str, values: Sequence[object]) -> str:
        """A condition: the column is one of these."""

    def contains(self, column: str, text: str) -> str:
        """A condition: the column holds this text, letter case ignored."""


def conditions(selection: Selection, binder: Binder, *, key: str = "key") -> str:
    """All conditions but the state's, joined by `and`; the columns are those of the tables and the view.

    `key` is how that column is written, where the word must be quoted.
    """
    found = [f"{column} = {binder.value(value)}" for column, value in _equals(selection, key) if value is not None]
    found += [binder.any_of(column, values) for column, values in _lists(selection) if values is not None]
    found += [f"{column} {sign} {binder.value(value)}" for column, sign, value in _bounds(selection) if value]
    if selection.error is not None:
        found.append(binder.contains("last_error", selection.error))
    return " and ".join(found)


def _equals(selection: Selection, key: str) -> Sequence[tuple[str, object]]:
    return (
        ("destination", selection.destination),
        ("topic", selection.topic),
        ("type", selection.type),
        (key, selection.key),
        ("correlation_id", selection.correlation_id),
    )


def _lists(selection: Selection) -> Sequence[tuple[str, Sequence[object] | None]]:
    return (("id", selection.ids), ("message_id", selection.message_ids))


def _bounds(selection: Selection) -> Sequence[tuple[str, str, object]]:
    return (
        ("created_at", ">=", selection.since),
        ("created_at", "<", selection.until),
        ("status_at", "<", selection.changed_before),
        ("attempts", ">=", selection.min_attempts),
        ("id", ">", selection.after),
    )
