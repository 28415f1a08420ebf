"""Broken dispatch: what an answer, or none, is taken for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from pillarbox.contracts.store import FailedOutcome
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import StoreError, StoreRefused
from pillarbox.message import Message
from pillarbox.relay import ordering as ordering_module
from pillarbox.relay import reader as reader_module
from pillarbox.relay import sender as sender_module
from pillarbox.relay.breaker import AddressBreakers, FailureRow
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.ordering import LONE_STRIKES, LaneOrdering, ReadDecision
from pillarbox.relay.outcome_policy import BatchResult, OutcomePolicy, build_hold
from pillarbox.relay.reader import Reader
from pillarbox.relay.sender import Sender
from proof.simulation.checker import Promise
from proof.simulation.variants.variant import Changes, Replace

__all__ = ["ANSWERS"]


def settle_before_send(replace: Replace) -> None:
    """A message is recorded as delivered, and then sent."""

    async def send(sender: Sender, messages: Sequence[Message]) -> None:
        state = sender._state
        state.ordering.mark_delivered(messages)
        state.settle_event.set()
        while any(state.ordering.is_in_flight(message) for message in messages):
            await asyncio.sleep(0.001)
        await sender._transport.send(messages)

    replace(Sender, "_send", send)


def attempts_spent_on_an_outage(replace: Replace) -> None:
    """Every failure spends an attempt, whether or not the destination has shown that it works."""
    replace(OutcomePolicy, "has_witness", lambda policy, message, **_: True)


def attempt_counted_twice(replace: Replace) -> None:
    """A try that costs one attempt is recorded as two."""
    original_spend = OutcomePolicy._spend_attempt

    def spend(policy: OutcomePolicy, message: Message, outcome: Outcome, *, dice: float) -> FailedOutcome:
        counted = msgspec.structs.replace(message, attempts=message.attempts + 1)
        return original_spend(policy, counted, outcome, dice=dice)

    replace(OutcomePolicy, "_spend_attempt", spend)


def attempts_not_counted(replace: Replace) -> None:
    """A try that costs an attempt is recorded without it, so that a message is never out of attempts."""
    original_spend = OutcomePolicy._spend_attempt

    def spend(policy: OutcomePolicy, message: Message, outcome: Outcome, *, dice: float) -> FailedOutcome:
        counted = msgspec.structs.replace(message, attempts=message.attempts - 1)
        return original_spend(policy, counted, outcome, dice=dice)

    replace(OutcomePolicy, "_spend_attempt", spend)


def one_failure_is_an_outage(replace: Replace) -> None:
    """A single message that is answered with a failure opens the breaker for all."""
    replace(FailureRow, "is_outage", property(lambda row: bool(row.message_ids)))


def not_now_spends_an_attempt(replace: Replace) -> None:
    """An address that takes nothing at present is the message's fault, as soon as another address took something."""
    original_evaluate = OutcomePolicy.evaluate

    def evaluate(policy: OutcomePolicy, messages: Any, outcomes: Sequence[Outcome], **options: Any) -> BatchResult:
        blamed = [msgspec.structs.replace(outcome, not_now=False, missing=False) for outcome in outcomes]
        return original_evaluate(policy, messages, blamed, **options)

    replace(OutcomePolicy, "evaluate", evaluate)


def blocked_address_never_probed(replace: Replace) -> None:
    """What waits for a blocked address waits for ever."""
    replace(AddressBreakers, "may_send", lambda addresses, address, now: not addresses.is_blocked(address))


def what_waits_for_its_address_is_overtaken(replace: Replace) -> None:
    """A message that is not sent because its address is blocked does not hold up the next one of its key."""

    def hold(sender: Sender, message: Message) -> bool:
        state, address = sender._state, sender._find_address(message)
        if address is None or state.addresses.may_send(address, state.clock.monotonic()):
            return False
        entry = state.ordering._in_flight.entries[message.id]
        pause, reason = state.addresses.hold(address, state.clock.monotonic(), dice=0.5)
        state.ordering._in_flight.add_failure(entry, build_hold(message, reason=reason, pause=pause))
        if message.key is not None:
            queue = state.ordering._keys[message.key]
            queue.remove(entry.message)
            state.ordering._advance(queue)
        state.settle_event.set()
        return True

    replace(Sender, "_hold", hold)


def unknown_is_delivered(replace: Replace) -> None:
    """A connection that broke is taken for an answer."""

    def returned(sender: Sender, messages: Sequence[Message], error: Exception, *, struck: bool, began: int) -> None:
        sender._apply_outcomes(messages, [Outcome(True)] * len(messages), began=began)

    replace(Sender, "_return", returned)


def silence_is_delivered(replace: Replace) -> None:
    """No answer in time is taken for a good one."""
    original_call = Sender._call_transport

    async def call_transport(sender: Sender, transport: Any, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await original_call(sender, transport, messages)
        return [Outcome(True) if "no answer" in (outcome.error or "") else outcome for outcome in outcomes]

    replace(Sender, "_call_transport", call_transport)


def settle_not_repeated(replace: Replace) -> None:
    """A write of unknown outcome is taken for done."""
    original_retry = DestinationState.retry_write

    async def retry_write(state: DestinationState, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        async def once() -> None:
            try:
                await write()
            except StoreError:
                if what != "settling":
                    raise

        return await original_retry(state, what, once)

    replace(DestinationState, "retry_write", retry_write)


def refused_settlement_repeated_for_ever(replace: Replace) -> None:
    """A write that the store refuses for good is repeated, with everything else that is in it."""
    original_retry = DestinationState.retry_write

    async def retry_write(state: DestinationState, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        async def repeat() -> None:
            try:
                await write()
            except StoreRefused as error:
                raise StoreError(str(error)) from error

        return await original_retry(state, what, repeat)

    replace(DestinationState, "retry_write", retry_write)


def sent_before_it_is_claimed(replace: Replace) -> None:
    """A message goes out while its claim is still being recorded."""
    original_record = Reader._record_claim

    async def record_claim(reader: Reader, decision: ReadDecision, strikes: int, epochs: Mapping[int, int]) -> None:
        state = reader._state
        state.ordering.confirm_claim(state.lease.next_claim_number(), decision.take)
        state.send_event.set()
        await original_record(reader, ReadDecision((), decision.park), strikes, epochs)

    replace(Reader, "_record_claim", record_claim)


def strikes_forgotten(replace: Replace) -> None:
    """Nobody counts how often relays died with a message in hand."""
    original_recover = LaneOrdering.recover_claim

    def recover_claim(ordering: LaneOrdering, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        original_recover(ordering, number, messages, strikes=0)

    replace(LaneOrdering, "recover_claim", recover_claim)


def neighbours_struck(replace: Replace) -> None:
    """Whoever was in hand with a deadly message is held to be as deadly."""
    replace(reader_module, "_strikes_while_waiting", lambda strikes: strikes)
    original_recover = LaneOrdering.recover_claim

    def recover_claim(ordering: LaneOrdering, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        original_recover(ordering, number, messages, strikes=strikes if len(messages) == 1 else max(strikes, 2))

    replace(LaneOrdering, "recover_claim", recover_claim)


def deaths_without_a_witness(replace: Replace) -> None:
    """A relay that dies with a message in hand is held against it, although the destination answers nobody."""
    replace(OutcomePolicy, "has_lone_witness", lambda policy, message: True)
    replace(Sender, "_may_send_suspects", lambda sender: True)


def never_given_up(replace: Replace) -> None:
    """A deadly message is tried for ever."""
    replace(sender_module, "LONE_STRIKES", 10_000)


def never_alone(replace: Replace) -> None:
    """A deadly message is sent as any other, however often relays died of it."""
    replace(ordering_module, "SUSPECT_STRIKES", 10_000)


def suspects_not_split(replace: Replace) -> None:
    """Suspects are sent in one group, however often relays died of it."""
    replace(ordering_module, "_max_group", lambda strikes: 256)
    replace(ordering_module, "_raise_to_group", lambda strikes, size: strikes)


def company_is_evidence(replace: Replace) -> None:
    """A death counts against every suspect of the group as if each had been alone."""
    replace(ordering_module, "_raise_to_group", lambda strikes, size: max(strikes, LONE_STRIKES))


ANSWERS: Changes = {
    settle_before_send: (Promise.LOST,),
    attempts_spent_on_an_outage: (Promise.SPENT,),
    attempt_counted_twice: (Promise.MISCOUNTED,),
    attempts_not_counted: (Promise.MISCOUNTED,),
    one_failure_is_an_outage: (Promise.DELAYED,),
    not_now_spends_an_attempt: (Promise.SPENT,),
    blocked_address_never_probed: (Promise.STUCK,),
    what_waits_for_its_address_is_overtaken: (Promise.OUT_OF_ORDER,),
    unknown_is_delivered: (Promise.LOST,),
    silence_is_delivered: (Promise.LOST,),
    settle_not_repeated: (Promise.STUCK,),
    refused_settlement_repeated_for_ever: (Promise.STUCK,),
    sent_before_it_is_claimed: (Promise.STUCK,),
    strikes_forgotten: (Promise.STUCK,),
    neighbours_struck: (Promise.INNOCENT,),
    deaths_without_a_witness: (Promise.INNOCENT,),
    never_given_up: (Promise.STUCK,),
    never_alone: (Promise.STUCK,),
    suspects_not_split: (
        Promise.INNOCENT,
        Promise.STUCK,
    ),
    company_is_evidence: (Promise.INNOCENT,),
}
