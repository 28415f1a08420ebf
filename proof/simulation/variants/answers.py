"""Broken dispatch: what an answer, or none, is taken for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import StoreError
from pillarbox.message import Message
from pillarbox.relay import ordering as ordering_module
from pillarbox.relay import reader as reader_module
from pillarbox.relay import sender as sender_module
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.ordering import LaneOrdering, ReadDecision
from pillarbox.relay.outcome_policy import OutcomePolicy
from pillarbox.relay.reader import Reader
from pillarbox.relay.sender import Sender
from proof.simulation.variants.variant import Switch

__all__ = ["ANSWERS"]


def settle_before_send(switch: Switch) -> None:
    """A message is recorded as delivered, and then sent."""

    async def send(sender: Sender, messages: Sequence[Message]) -> None:
        state = sender._state
        state.ordering.mark_delivered(messages)
        state.settle_event.set()
        while any(state.ordering.is_in_flight(message) for message in messages):
            await asyncio.sleep(0.001)
        await sender._transport.send(messages)

    switch(Sender, "_send", send)


def attempts_spent_on_an_outage(switch: Switch) -> None:
    """Every failure spends an attempt, whether or not the destination has shown that it works."""
    switch(OutcomePolicy, "has_witness", lambda policy, message, *, began: True)


def unknown_is_delivered(switch: Switch) -> None:
    """A connection that broke is taken for an answer."""

    def returned(sender: Sender, messages: Sequence[Message], error: Exception, *, struck: bool, began: int) -> None:
        sender._apply_outcomes(messages, [Outcome(True)] * len(messages), began=began)

    switch(Sender, "_return", returned)


def silence_is_delivered(switch: Switch) -> None:
    """No answer in time is taken for a good one."""
    call_as_it_was = Sender._call_transport

    async def call_transport(sender: Sender, transport: Any, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await call_as_it_was(sender, transport, messages)
        return [Outcome(True) if "no answer" in (outcome.error or "") else outcome for outcome in outcomes]

    switch(Sender, "_call_transport", call_transport)


def settle_not_repeated(switch: Switch) -> None:
    """A write of unknown outcome is taken for done."""
    retry_as_it_was = DestinationState.retry_write

    async def retry_write(state: DestinationState, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        async def once() -> None:
            try:
                await write()
            except StoreError:
                if what != "settling":
                    raise

        return await retry_as_it_was(state, what, once)

    switch(DestinationState, "retry_write", retry_write)


def sent_before_it_is_claimed(switch: Switch) -> None:
    """A message goes out while its claim is still being recorded."""
    record_as_it_was = Reader._record_claim

    async def record_claim(reader: Reader, decision: ReadDecision, strikes: int) -> None:
        state = reader._state
        state.ordering.confirm_claim(state.lease.next_claim_number(), decision.take)
        state.send_event.set()
        await record_as_it_was(reader, ReadDecision((), decision.park), strikes)

    switch(Reader, "_record_claim", record_claim)


def strikes_forgotten(switch: Switch) -> None:
    """Nobody counts how often relays died with a message in hand."""
    recover_as_it_was = LaneOrdering.recover_claim

    def recover_claim(ordering: LaneOrdering, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        recover_as_it_was(ordering, number, messages, strikes=0)

    switch(LaneOrdering, "recover_claim", recover_claim)


def neighbours_struck(switch: Switch) -> None:
    """Whoever was in hand with a deadly message is held to be as deadly."""
    switch(reader_module, "_strikes_while_waiting", lambda strikes: strikes)
    switch(ordering_module, "_cap_strikes", lambda strikes, messages: strikes if messages == 1 else max(strikes, 2))


def never_given_up(switch: Switch) -> None:
    """A deadly message is tried for ever."""
    switch(sender_module, "LONE_STRIKES", 10_000)


def never_alone(switch: Switch) -> None:
    """A deadly message is sent with others, however often relays died of it."""
    switch(ordering_module, "LONE_STRIKES", 10_000)


ANSWERS = (
    settle_before_send,
    attempts_spent_on_an_outage,
    unknown_is_delivered,
    silence_is_delivered,
    settle_not_repeated,
    sent_before_it_is_claimed,
    strikes_forgotten,
    neighbours_struck,
    never_given_up,
    never_alone,
)
