"""Broken runs: several messages of a key in one send, and what follows when one of them is not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.relay.in_flight import KeyQueue
from pillarbox.relay.ordering import LaneOrdering
from pillarbox.relay.sender import Sender
from proof.simulation.checker import Promise
from proof.simulation.destination import Broker
from proof.simulation.variants.variant import Changes, Replace

__all__ = ["RUNS"]


def acknowledged_past_a_failure(replace: Replace) -> None:
    """A transport goes on with a run behind a message that was not taken, and acknowledges what follows."""
    replace(Broker, "_end_run", lambda broker, key, ended: None)


def run_continued_after_a_takeover(replace: Replace) -> None:
    """The messages of a run are sent one after the other, and nobody looks at the lease between two of them."""
    original_call = Sender._call_transport

    async def call_transport(sender: Sender, transport: Any, messages: Sequence[Message]) -> Sequence[Outcome]:
        if len({message.key for message in messages}) == len(messages):
            return await original_call(sender, transport, messages)
        outcomes: list[Outcome] = []
        for message in messages:
            outcomes += await original_call(sender, transport, [message])
            if not outcomes[-1].delivered:
                break
        unsent = Outcome(False, "not sent", unsent=True)
        return outcomes + [unsent] * (len(messages) - len(outcomes))

    replace(Sender, "_call_transport", call_transport)


def rest_of_a_run_counts_as_tried(replace: Replace) -> None:
    """What follows a message of a run that was not acknowledged has failed too, and spends an attempt."""
    replace(Sender, "_end_runs", lambda sender, messages, outcomes: (messages, outcomes))
    replace(LaneOrdering, "_end_run", lambda ordering, queue, *, after, is_failed=False: [])


def rest_of_a_run_forgotten(replace: Replace) -> None:
    """What follows a message of a run that was not acknowledged is never sent."""
    replace(KeyQueue, "end_run", lambda queue, *, after: [])


RUNS: Changes = {
    acknowledged_past_a_failure: (Promise.OUT_OF_ORDER,),
    run_continued_after_a_takeover: (Promise.OVERRUN,),
    rest_of_a_run_counts_as_tried: (Promise.SPENT, Promise.MISCOUNTED, Promise.INNOCENT),
    rest_of_a_run_forgotten: (Promise.STUCK,),
}
