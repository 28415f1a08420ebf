"""Rules of operators' actions that are the same for every store: eligible states, refusals, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, get_args

from pillarbox.contracts.store import Action, BulkResult, JournalEntry, Selection
from pillarbox.errors import ConfigError, IllegalTransition, NoSuchMessage
from pillarbox.message import State

__all__ = ["Keep", "build_inbox_entry", "check_keep", "eligible_states", "explain_empty_batch"]

_ELIGIBLE: Final = {
    Action.REDRIVEN: (State.FAILED, State.DISCARDED),
    Action.REPLAYED: (State.DELIVERED,),
    Action.DISCARDED: (State.PENDING, State.FAILED),
    Action.DEFERRED: (State.PENDING,),
}


def eligible_states(action: Action, selection: Selection, *, to: str | None = None) -> list[State]:
    """List the states that the action applies to and the selection allows. A skipped message needs a destination."""
    states = _ELIGIBLE[action] if to is None else (*_ELIGIBLE[action], State.SKIPPED)
    return [state for state in states if selection.states is None or state in selection.states]


def explain_empty_batch(selection: Selection, found: Sequence[tuple[int, State]], action: Action) -> BulkResult:
    """Return the result of a batch in which nothing was eligible, or raise the reason.

    Named messages that are missing or in a wrong state are an error. Without names, and past the first page, an empty
    batch is the end.
    """
    if selection.after or (selection.ids is None and selection.message_ids is None):
        return BulkResult(0, selection.after)
    if not found:
        named = ", ".join(str(name) for name in [*(selection.ids or ()), *(selection.message_ids or ())][:3])
        raise NoSuchMessage(f"There is no message {named}: it was never committed, or its retention is over.")
    message_id, state = found[0]
    target = State.DISCARDED if action is Action.DISCARDED else State.PENDING
    eligible = " or ".join(state.value for state in _ELIGIBLE[action])
    hint = " Give a skipped one a destination to go to." if state is State.SKIPPED else ""
    raise IllegalTransition(
        f"Message {message_id} is {state.value} and cannot be {action.value} (become {target.value}): "
        f"only what is {eligible} and in no relay's hands can.{hint}"
    )


def build_inbox_entry(
    consumer: str, source: str, message_id: str, *, action: Action, by: str, at: datetime, reason: str | None = None
) -> JournalEntry:
    """Build the journal's line for an action on a message of an inbox.

    Its id is the producer's and need not be a UUID, so it stands in the detail.
    """
    return JournalEntry(
        message_id=None,
        destination=f"inbox:{consumer}",
        action=action,
        at=at,
        by=by,
        error=reason,
        detail=f"{source} {message_id}",
    )


Keep = Literal["full", "no-payload", "off"]
"""What history keeps of a delivered message: all of it, all but its payload, or nothing."""


def check_keep(keep: str) -> None:
    """Raise `ConfigError` for a value that is no `Keep`."""
    if keep not in get_args(Keep):
        raise ConfigError(f"keep is {keep!r}: write 'full', 'no-payload' or 'off'.")
