"""Rules that are the same for every store: recovered claims, eligible states, refusals, what is kept. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, get_args
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import (
    Action,
    BulkResult,
    Claim,
    FailedOutcome,
    FailureGroup,
    InboxCount,
    JournalEntry,
    Phase,
    RecoveredClaim,
    Selection,
)
from pillarbox.errors import ConfigError, IllegalTransition, NoSuchMessage
from pillarbox.fingerprint import fingerprint
from pillarbox.message import Message, State, Waits

__all__ = [
    "MOVED_IDS",
    "Keep",
    "add_strikes",
    "build_failure_group",
    "build_inbox_counts",
    "build_inbox_entry",
    "check_keep",
    "choose_ids",
    "compute_fingerprint",
    "cut_by_bytes",
    "cut_sizes",
    "describe_closing",
    "eligible_states",
    "explain_empty_batch",
    "find_fingerprint",
    "group_by_strikes",
    "list_phases",
    "list_possible_ids",
    "list_purged_statuses",
    "list_states",
    "matches",
    "select_missing",
    "sort_failure_groups",
]

_MAX_STRIKES: Final = 1_000_000
"""More are none that a relay counted, and one more would not fit the column."""

# --- reads ---


def cut_by_bytes(messages: Iterable[Message], max_bytes: int) -> list[Message]:
    """Return the messages up to the one whose payload brings the sum to `max_bytes`: at least one if there is one."""
    taken: list[Message] = []
    size = 0
    for message in messages:
        taken.append(message)
        size += len(message.payload)
        if size >= max_bytes:
            break
    return taken


def cut_sizes(sizes: Iterable[tuple[int, int]], max_bytes: int) -> list[int]:
    """Return the ids up to the one whose size brings the sum to `max_bytes`: at least one if there is one."""
    taken: list[int] = []
    total = 0
    for message_id, size in sizes:
        taken.append(message_id)
        total += size
        if total >= max_bytes:
            break
    return taken


# --- claims of dead relays ---


def add_strikes(claims: Iterable[tuple[int, Iterable[int]]]) -> dict[int, int]:
    """Map each message of a dead relay's claims, given as strikes and ids, to its strikes: one more than before."""
    strikes: dict[int, int] = {}
    for before, message_ids in claims:
        for message_id in message_ids:
            # A message can be in two claims for a moment, when it gets one of its own to be sent alone.
            strikes[message_id] = max(min(max(before, 0), _MAX_STRIKES) + 1, strikes.get(message_id, 0))
    return strikes


def group_by_strikes(message_ids: Iterable[int], strikes: Mapping[int, int], *, claim_number: int) -> list[Claim]:
    """Build one claim per count of strikes, numbered from `claim_number`. The messages keep their order.

    The store records each with one strike less. Until the new owner claims the messages anew none of them is being
    sent, and a relay that dies with them proves nothing about them.
    """
    groups: dict[int, list[int]] = {}
    for message_id in message_ids:
        groups.setdefault(strikes[message_id], []).append(message_id)
    return [
        Claim(number, group, count) for number, (count, group) in enumerate(sorted(groups.items()), start=claim_number)
    ]


def attach_messages(claims: Iterable[Claim], messages: Iterable[Message]) -> list[RecoveredClaim]:
    """Give each claim its messages. Those that are no longer open leave it, and a claim without any is left out."""
    rows = {message.id: message for message in messages}
    recovered = []
    for claim in claims:
        if found := [rows[message_id] for message_id in claim.message_ids if message_id in rows]:
            recovered.append(RecoveredClaim(Claim(claim.number, [row.id for row in found], claim.strikes), found))
    return recovered


# --- actions of operators ---


_ELIGIBLE: Final = {
    Action.REDRIVEN: (State.FAILED, State.DISCARDED),
    Action.REPLAYED: (State.DELIVERED,),
    Action.DISCARDED: (State.PENDING, State.FAILED, State.SKIPPED),
    Action.DEFERRED: (State.PENDING,),
}


def eligible_states(action: Action, selection: Selection, *, to: str | None = None) -> list[State]:
    """List the states that the action applies to and the selection allows. A skipped message needs a destination.

    A redrive by filters alone means what failed, and a discard what is open or failed: what was discarded or skipped
    must be named, by its state or by its id.
    """
    states = _ELIGIBLE[action] if to is None else (*_ELIGIBLE[action], State.SKIPPED)
    if selection.fingerprint is not None:
        states = tuple(state for state in states if state is State.FAILED)
    is_by_filters = selection.ids is None and selection.message_ids is None and selection.states is None
    if is_by_filters:
        named = (State.DISCARDED, State.SKIPPED)
        return [state for state in states if state not in named or action not in (Action.REDRIVEN, Action.DISCARDED)]
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
    refused = f"Message {message_id} is {state.value} and cannot be {action.value}"
    if action is Action.DEFERRED and state is State.PENDING:
        raise IllegalTransition(f"{refused}: it waits behind an earlier message of its key. Defer that one.")
    target = State.DISCARDED if action is Action.DISCARDED else State.PENDING
    eligible = " or ".join(state.value for state in _ELIGIBLE[action])
    hint = " Give a skipped one a destination to go to." if state is State.SKIPPED else ""
    raise IllegalTransition(
        f"{refused} (become {target.value}): only what is {eligible}, and not claimed by a relay, can.{hint}"
    )


def list_purged_statuses(*, failed: bool) -> list[tuple[str, bool | None]]:
    """List the statuses of inbox records that are purged together, each with whether its content must be there.

    A start without content counts deaths and no more. A start with content is a message that a person redrove: it is
    kept as long as a failed one.
    """
    return [("failed", None), ("started", True)] if failed else [("done", None), ("started", False)]


def build_inbox_counts(rows: Sequence[tuple[str, int, datetime]], *, limit: int) -> list[InboxCount]:
    """Build the counts of failed messages by consumer, from as many rows of an inbox as the limit allowed."""
    is_cut = sum(count for _, count, _ in rows) >= limit
    return [
        InboxCount(consumer=consumer, failed=count, oldest_at=oldest_at, more=is_cut)
        for consumer, count, oldest_at in rows
    ]


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
        reason=reason,
        detail=f"{source} {message_id}",
    )


def build_failure_group(destination: str, name: str, messages: Sequence[Message], *, counted_to: int) -> FailureGroup:
    """Build the group of these failed messages, at least one, of which all were looked at."""
    latest = max(messages, key=lambda one: (_failed_at(one), one.id))
    return FailureGroup(
        destination=destination,
        fingerprint=name,
        count=min(len(messages), counted_to),
        more=len(messages) >= counted_to,
        first_at=min(map(_failed_at, messages)),
        last_at=_failed_at(latest),
        keys=len({message.key for message in messages if message.key is not None}),
        example=replace(latest, payload=b""),
    )


def _failed_at(message: Message) -> datetime:
    return message.status_at or message.event_time


def sort_failure_groups(groups: Iterable[FailureGroup]) -> list[FailureGroup]:
    """Sort groups by size, the largest first."""
    return sorted(groups, key=lambda group: (-group.count, group.destination, group.fingerprint))


# --- history ---


Keep = Literal["full", "no-payload", "off"]
"""What history keeps of a delivered message: all of it, all but its payload, or nothing."""


def check_keep(keep: str) -> None:
    """Raise `ConfigError` for a value that is no `Keep`."""
    if keep not in get_args(Keep):
        raise ConfigError(f"keep is {keep!r}: write 'full', 'no-payload' or 'off'.")


MOVED_IDS: Final = 2**52
"""The least id of closed messages that cannot have their own. No counter gets there."""


def select_missing(messages: Iterable[Message], known: Iterable[tuple[UUID, str]]) -> list[Message]:
    """Return the messages that are not among the known message ids and destinations, each once, in id order."""
    seen = set(known)
    missing: list[Message] = []
    for message in sorted(messages, key=lambda one: one.id):
        if (identity := (message.message_id, message.destination)) not in seen:
            seen.add(identity)
            missing.append(message)
    return missing


def list_possible_ids(messages: Iterable[Message]) -> list[int]:
    """List the ids that the messages could have in history: their own, and those that stand for them."""
    return [id_ for message in messages for id_ in (message.id, _move_id(message.id))]


def choose_ids(messages: Iterable[Message], *, taken: Collection[int], highest: int) -> list[int]:
    """Choose the ids of restored messages. `highest` is the highest id that the counter of the store surely gave.

    A higher one would be given to a new message some day, while the restored one is open again.
    """
    used = set(taken)
    chosen: list[int] = []
    for message in messages:
        is_given = message.id <= highest or message.id >= MOVED_IDS
        id_ = message.id if is_given and message.id not in used else _move_id(message.id)
        while id_ in used:
            id_ = MOVED_IDS + random.randrange(MOVED_IDS)  # noqa: S311 - only so that it is free
        used.add(id_)
        chosen.append(id_)
    return chosen


def _move_id(id_: int) -> int:
    return MOVED_IDS + id_ % MOVED_IDS


def describe_closing(message: Message) -> str:
    """Say when a message that is restored was closed, for the journal."""
    at = message.status_at or message.event_time
    return f"{message.state.value} at {at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"


# --- selections ---


def list_states(selection: Selection) -> list[State]:
    """List the states that the selection allows. What has a fingerprint has failed, and so has what is held."""
    states = list(State if selection.states is None else selection.states)
    if selection.phase is not None:
        wanted = State.FAILED if selection.phase is Phase.HELD else State.PENDING
        states = [state for state in states if state is wanted]
    return states if selection.fingerprint is None else [state for state in states if state is State.FAILED]


def compute_fingerprint(failure: FailedOutcome, *, error: object = None) -> str | None:
    """Return the fingerprint of a message that fails so; None if it does not fail. `error` is its last one so far."""
    if failure.forward_to is not None or (failure.state is not State.FAILED and failure.waits is not Waits.HELD):
        return None
    text = failure.error if failure.error is not None else error
    return fingerprint(text if isinstance(text, str) else "")


def find_fingerprint(message: Message) -> str | None:
    """Return the fingerprint of a stored message; None if it has not failed."""
    return fingerprint(message.last_error or "") if message.state is State.FAILED else None


def list_phases(message: Message, *, since: datetime, at: datetime) -> list[Phase]:
    """List the phases in which an open message stands at a time; none for one that is sending or closed.

    `since` is when it first could have been sent.
    """
    if message.waits is Waits.HELD:
        return [Phase.HELD]
    if message.state is not State.PENDING:
        return []
    narrower = {Waits.RETRY: [Phase.RETRY], Waits.PARKED: [Phase.PARKED]}.get(message.waits or Waits.DEFERRED, [])
    is_due = message.waits is None or since <= at
    return [Phase.DUE if is_due else Phase.LATER, *narrower]


def matches(message: Message, selection: Selection) -> bool:
    """Return whether every condition that is set holds for a stored message, in the state that operators see.

    The phase is not looked at: it depends on a time that the message does not have.
    """
    created_at, status_at = message.created_at, message.status_at
    return (
        message.id > selection.after
        and (selection.before is None or message.id < selection.before)
        and (selection.ids is None or message.id in selection.ids)
        and (selection.message_ids is None or message.message_id in selection.message_ids)
        and (selection.states is None or message.state in selection.states)
        and selection.destination in (None, message.destination)
        and selection.topic in (None, message.topic)
        and selection.type in (None, message.type)
        and selection.key in (None, message.key)
        and selection.correlation_id in (None, message.correlation_id)
        and (selection.error is None or selection.error.lower() in (message.last_error or "").lower())
        and (selection.fingerprint is None or find_fingerprint(message) == selection.fingerprint)
        and (not selection.tried or message.last_error is not None)
        and (selection.min_attempts is None or message.attempts >= selection.min_attempts)
        and (selection.since is None or (created_at is not None and created_at >= selection.since))
        and (selection.until is None or (created_at is not None and created_at < selection.until))
        and (selection.changed_before is None or (status_at is not None and status_at < selection.changed_before))
    )
