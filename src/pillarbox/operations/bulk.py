"""Changes of many messages at once: redrive, replay, discard, defer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from pillarbox.contracts.store import Action, BulkResult, OperatorStore, Selection
from pillarbox.message import State
from pillarbox.stores.rules import eligible_states

__all__ = [
    "BATCH_SIZE",
    "ChangeBatch",
    "change_all",
    "count_by_state",
    "describe_left_alone",
    "describe_result",
    "format_count",
    "format_counts",
]

BATCH_SIZE: Final = 1_000
"""Messages that one transaction changes: long ones would hold up the relays."""

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
