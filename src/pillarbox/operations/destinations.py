"""Names of destinations that the tables know, and the refusal of names that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Final

from pillarbox.contracts.store import Store
from pillarbox.errors import UnknownDestination
from pillarbox.message import SKIPPED_DESTINATION, check_destination
from pillarbox.settings import join_words

__all__ = ["check_known", "find_destinations"]

_LISTED: Final = 10


async def find_destinations(store: Store, *, lease: timedelta) -> set[str]:
    """Return every destination that has a message, a living relay or a pause."""
    registry = await store.registry(lease=lease)
    found = {count.destination for count in await store.counts()}
    found |= {pause.destination for pause in await store.pauses()}
    found |= {name for relay in registry.relays for name in relay.destinations}
    return found - {SKIPPED_DESTINATION}


def check_known(name: str, known: Iterable[str]) -> None:
    """Raise `UnknownDestination` for a name that is not known; the sentence lists those that are."""
    check_destination(name)
    names = sorted(known)
    if name in names:
        return
    if not names:
        raise UnknownDestination(
            f"There is no destination {name}: none is configured, and no message or relay in the tables names one."
        )
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? The" if near else "the"
    raise UnknownDestination(
        f"There is no destination {name}: {hint} configuration and the tables know {_join_some(names)}."
    )


def _join_some(names: list[str]) -> str:
    shown = names if len(names) <= _LISTED else [*names[:_LISTED], f"{len(names) - _LISTED:,} more"]
    return join_words(shown)
