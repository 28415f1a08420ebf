"""Broken dispatch: what an answer, or none, is taken for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pillarbox.errors import StoreError
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.relay import dispatch as dispatching
from pillarbox.relay import intake
from pillarbox.relay.dispatch import Dispatch
from pillarbox.relay.intake import Intake
from pillarbox.relay.judging import Judge
from pillarbox.relay.lane import LaneCore, Offer, sending
from pillarbox.relay.lane.sending import Sending
from pillarbox.relay.work import Work
from simulation.variants.variant import Switch

__all__ = ["ANSWERS"]


def settle_before_send(switch: Switch) -> None:
    """A message is recorded as delivered, and then sent."""

    async def send(dispatch: Dispatch, messages: Sequence[Message]) -> None:
        work = dispatch._work
        work.core.delivered(messages)
        work.outcomes.set()
        while any(work.core.is_in_hand(message) for message in messages):
            await asyncio.sleep(0.001)
        await dispatch._transport.send(messages)

    switch(Dispatch, "_send", send)


def attempts_spent_on_an_outage(switch: Switch) -> None:
    """Every failure spends an attempt, whether or not the destination has shown that it works."""
    switch(Judge, "is_witnessed", lambda judge, message, *, began: True)


def unknown_is_delivered(switch: Switch) -> None:
    """A connection that broke is taken for an answer."""

    def returned(
        dispatch: Dispatch, messages: Sequence[Message], error: Exception, *, struck: bool, began: int
    ) -> None:
        dispatch._weigh(messages, [Outcome(True)] * len(messages), began=began)

    switch(Dispatch, "_return", returned)


def silence_is_delivered(switch: Switch) -> None:
    """No answer in time is taken for a good one."""
    answers_as_it_was = Dispatch._answers

    async def answers(dispatch: Dispatch, transport: Any, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await answers_as_it_was(dispatch, transport, messages)
        return [Outcome(True) if "no answer" in (outcome.error or "") else outcome for outcome in outcomes]

    switch(Dispatch, "_answers", answers)


def settle_not_repeated(switch: Switch) -> None:
    """A write of unknown outcome is taken for done."""
    carried_as_it_was = Work.carried_through

    async def carried_through(work: Work, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        async def once() -> None:
            try:
                await write()
            except StoreError:
                if what != "settling":
                    raise

        return await carried_as_it_was(work, what, once)

    switch(Work, "carried_through", carried_through)


def sent_before_it_is_claimed(switch: Switch) -> None:
    """A message goes out while its claim is still being recorded."""
    record_as_it_was = Intake._record

    async def record(intake: Intake, offer: Offer, strikes: int) -> None:
        work = intake._work
        work.core.claimed(work.standing.next_claim(), offer.take)
        work.ready.set()
        await record_as_it_was(intake, Offer((), offer.park), strikes)

    switch(Intake, "_record", record)


def strikes_forgotten(switch: Switch) -> None:
    """Nobody counts how often relays died with a message in hand."""
    inherit_as_it_was = Sending.inherit

    def inherit(core: LaneCore, number: int, messages: Sequence[Message], *, strikes: int) -> None:
        inherit_as_it_was(core, number, messages, strikes=0)

    switch(Sending, "inherit", inherit)


def neighbours_struck(switch: Switch) -> None:
    """Whoever was in hand with a deadly message is held to be as deadly."""
    switch(intake, "_while_waiting", lambda strikes: strikes)
    switch(sending, "min", max)


def never_given_up(switch: Switch) -> None:
    """A deadly message is tried for ever."""
    switch(dispatching, "LONE_STRIKES", 10_000)


def never_alone(switch: Switch) -> None:
    """A deadly message is sent with others, however often relays died of it."""
    switch(sending, "LONE_STRIKES", 10_000)


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
