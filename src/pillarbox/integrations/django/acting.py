"""What a person does with messages from Django: the store's own operations, as on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pillarbox.cli.asking import asked
from pillarbox.cli.moving import BATCH, every_batch
from pillarbox.cli.target import Target
from pillarbox.config import Config
from pillarbox.integrations.django import conf
from pillarbox.journal import Action
from pillarbox.message import State
from pillarbox.protocols import Moved, Selection, Store
from pillarbox.stores.operations import able_states
from pillarbox.stores.urls import store_url

__all__ = ["DISCARD", "MOST", "REDRIVE", "Change"]

MOST: Final = 10 * BATCH
"""How many messages one request changes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One way to change messages."""

    action: Action
    verb: str
    about: str
    asks_reason: bool = False

    @property
    def states(self) -> Sequence[State]:
        """The messages that it can change."""
        return able_states(self.action, Selection())

    def carry_out(self, ids: Sequence[int], *, by: str, reason: str, using: str) -> Moved:
        """Change those of these messages that it can. The journal says by whom.

        The store has a connection of its own: inside `transaction.atomic()` the two could wait for each other.
        """

        async def move(store: Store, chosen: Selection) -> Moved:
            if self.action is Action.REDRIVEN:
                return await store.redrive(chosen, by=by, limit=BATCH)
            return await store.discard(chosen, by=by, reason=reason, limit=BATCH)

        target = Target(store_url(conf.store_url(using)), conf.names(), Config())
        return asked(target, lambda store: every_batch(store, Selection(ids=ids), move))


REDRIVE: Final = Change(action=Action.REDRIVEN, verb="redrive", about="They are sent again, with all their attempts.")
DISCARD: Final = Change(
    action=Action.DISCARDED,
    verb="discard",
    about="They are closed without being sent. They are kept, and can be redriven.",
    asks_reason=True,
)
