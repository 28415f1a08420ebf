"""Changes of many messages at once: redrive, replay, discard, defer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from pillarbox.contracts.store import Action, BulkResult, InboxSelection, OperatorStore, Selection
from pillarbox.message import State
from pillarbox.stores.rules import eligible_states

__all__ = [
    "BATCH_SIZE",
    "ChangeBatch",
    "change_all",
    "count_by_state",
    "describe_left_alone",
    "describe_result",
    "encode_selection",
    "format_count",
    "format_counts",
    "note_bulk",
]

BATCH_SIZE: Final = 1_000
"""Messages that one transaction changes: long ones would hold up the relays."""

_IDS_WRITTEN: Final = 100
"""Most ids of a selection that the journal keeps. Each message has a line of its own too."""

ChangeBatch: TypeAlias = Callable[[OperatorStore, Selection], Awaitable[BulkResult]]
"""Changes the first `BATCH_SIZE` messages of a selection."""


async def count_by_state(
    store: OperatorStore, action: Action, selection: Selection, *, to: str | None = None
) -> dict[State, int]:
    """Count the selected messages that the action can change, by state; states without any are left out."""
    counts = {
        state: await store.count(msgspec.structs.replace(selection, states=[state]))
        for state in eligible_states(action, selection, to=to)
    }
    return {state: count for state, count in counts.items() if count}


async def change_all(
    store: OperatorStore,
    selection: Selection,
    change: ChangeBatch,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> BulkResult:
    """Change all messages of the selection, batch after batch in the order of their ids; return the total.

    `on_progress` gets the number of changed messages after each batch.
    """
    count = without_payload = 0
    while True:
        result = await change(store, selection)
        count, without_payload = count + result.count, without_payload + result.without_payload
        on_progress(count)
        # A short batch is not the last one: relays may have claimed some of its messages meanwhile.
        if result.last_id <= selection.after:
            return BulkResult(count, result.last_id, without_payload)
        selection = msgspec.structs.replace(selection, after=result.last_id)


async def note_bulk(
    store: OperatorStore,
    action: Action,
    selection: Selection | InboxSelection,
    count: int,
    *,
    by: str,
    reason: str | None = None,
    job: str | None = None,
) -> None:
    """Write the line of the journal that sums a bulk action up: what was selected, and how many were changed.

    `job` is the id under which a dashboard ran it.

    One message that was named, and an action that changed nothing, leave no such line.
    """
    named = [*(getattr(selection, "ids", None) or ()), *(selection.message_ids or ())]
    if not count or len(named) == 1:
        return
    if isinstance(selection, Selection):
        destination = selection.destination or "*"
    else:
        destination = "*" if selection.consumer is None else f"inbox:{selection.consumer}"
    detail = format_count(count) if job is None else f"{format_count(count)}, job {job}"
    await store.note(
        action, by=by, detail=detail, destination=destination, reason=reason, selection=encode_selection(selection)
    )


def encode_selection(selection: Selection | InboxSelection) -> str:
    """Encode the conditions that are set as JSON. Of very many ids the first are written, and how many there are."""
    document = {
        name: value
        for name in selection.__struct_fields__
        if (value := getattr(selection, name)) not in (None, False) and name != "after"
    }
    for name in ("ids", "message_ids"):
        if (ids := document.get(name)) is not None and len(ids) > _IDS_WRITTEN:
            document |= {name: ids[:_IDS_WRITTEN], f"{name}_count": len(ids)}
    return msgspec.json.encode(document).decode()


def describe_result(action: Action, result: BulkResult) -> str:
    """Say how many messages were changed, and how many could not be."""
    return f"{format_count(result.count)} {action.value}.{describe_left_alone(result)}"


def describe_left_alone(result: BulkResult) -> str:
    """Say how many messages could not be changed; nothing if all were."""
    if not result.without_payload:
        return ""
    return f" {result.without_payload:,} were left alone: their payload was not kept."


def format_count(count: int) -> str:
    """Format a number of messages: `1 message`, `2,000 messages`."""
    return "1 message" if count == 1 else f"{count:,} messages"


def format_counts(counts: Mapping[State, int]) -> str:
    """Format numbers of messages by state: `3 messages (2 failed, 1 discarded)`."""
    total = format_count(sum(counts.values()))
    return f"{total} ({', '.join(f'{count:,} {state.value}' for state, count in counts.items())})" if counts else total
