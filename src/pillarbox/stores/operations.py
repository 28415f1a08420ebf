"""Which states an operator's action applies to, and how a refusal reads. The same for every store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NoReturn

from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.journal import Action
from pillarbox.message import State
from pillarbox.protocols import Entry, Moved, Selection

__all__ = ["able_states", "inbox_entry", "refuse", "refused"]

_ABLE: Final = {
    Action.REDRIVEN: (State.FAILED, State.DISCARDED),
    Action.REPLAYED: (State.DELIVERED,),
    Action.DISCARDED: (State.PENDING, State.FAILED),
    Action.DEFERRED: (State.PENDING,),
}
_TO: Final = {Action.DISCARDED: State.DISCARDED}


def able_states(action: Action, selection: Selection, *, to: str | None = None) -> list[State]:
    """The states that the action applies to and the selection wants. A skipped message needs a new destination."""
    able = _ABLE[action] if to is None else (*_ABLE[action], State.SKIPPED)
    return [state for state in able if selection.states is None or state in selection.states]


def refused(selection: Selection, found: Sequence[tuple[int, State]], action: Action) -> Moved:
    """Nothing was eligible. Say why where a message was named; past the first page it is just the end."""
    if selection.after or (selection.ids is None and selection.message_ids is None):
        return Moved(0, selection.after)
    if not found:
        named = ", ".join(str(name) for name in [*(selection.ids or ()), *(selection.message_ids or ())][:3])
        raise NoSuchMessage(f"There is no message {named}: it was never committed, or its retention is over.")
    refuse(*found[0], action)


def refuse(message_id: int, state: State, action: Action) -> NoReturn:
    """An illegal transition: both states and the message, and what would be legal."""
    to = _TO.get(action, State.PENDING)
    able = " or ".join(state.value for state in _ABLE[action])
    hint = " Give a skipped one a destination to go to." if state is State.SKIPPED else ""
    raise IllegalTransition(
        f"Message {message_id} is {state.value} and cannot be {action.value} (become {to.value}): "
        f"only what is {able} and in no relay's hands can.{hint}"
    )


def inbox_entry(
    consumer: str, source: str, message_id: str, *, action: Action, by: str, at: datetime, reason: str | None = None
) -> Entry:
    """The journal's line for what a person did with a message of an inbox. Its id is the producer's, so it is told."""
    return Entry(
        message_id=None,
        destination=f"inbox:{consumer}",
        action=action,
        at=at,
        by=by,
        error=reason,
        detail=f"{source} {message_id}",
    )
