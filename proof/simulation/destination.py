"""A destination: takes messages, refuses them, goes silent, goes away, and dies of some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from random import Random
from typing import Final

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from proof.simulation.checker import Ledger
from proof.simulation.fault_kinds import FaultKind
from proof.simulation.trace import Trace
from proof.simulation.virtual_time import Timeline

__all__ = ["NATURE", "Broker", "Mood", "Nature", "Send"]

_SLOW_FOR: Final = 1.0
_QUICK: Final = 0.03
"""Seconds that even a slow destination takes, so long after the storm: the end is to be waited for."""
NATURE: Final = "nature"
"""The header that says what a message does to those who send or take it."""


class Nature(StrEnum):
    """What is wrong with a message."""

    BAD = "bad"
    """It is rejected."""
    SOUR = "sour"
    """It is refused, until the storm is over."""
    DEADLY = "deadly"
    """It kills the relay that sends it."""
    BREAKING = "breaking"
    """It breaks every connection it is sent on, until the storm is over: all by itself it could be an outage."""


class Mood(StrEnum):
    """How a destination behaves as a whole."""

    UP = "up"
    REFUSES = "refuses connections"
    BREAKS = "breaks connections"
    HANGS = "does not answer"
    NACKS = "refuses everything"


class Send:
    """A batch on its way to a destination, and its answer on the way back."""

    __slots__ = ("answer", "die", "messages")

    def __init__(
        self, messages: Sequence[Message], answer: asyncio.Future[Sequence[Outcome]], *, die: Callable[[], None]
    ) -> None:
        self.messages = messages
        self.answer = answer
        self.die = die
        """What a deadly message does."""

    def answered(self, outcomes: Sequence[Outcome]) -> None:
        if not self.answer.done():
            self.answer.set_result(outcomes)

    def broke(self, text: str, *, mid_send: bool) -> None:
        if not self.answer.done():
            self.answer.set_exception(TransportUnavailable(text, mid_send=mid_send))


class Broker:
    """One destination, the same for all relays."""

    def __init__(
        self,
        name: str,
        *,
        timeline: Timeline,
        dice: Random,
        ledger: Ledger,
        trace: Trace,
        latency: float,
        patience: float,
        weather: dict[FaultKind, float],
    ) -> None:
        self.name = name
        self.mood = Mood.UP
        self._timeline = timeline
        self._dice = dice
        self._ledger = ledger
        self._trace = trace
        self._latency = latency
        self._patience = patience
        """How long relays wait for an answer."""
        self._nacks = weather.get(FaultKind.NACK, 0.0)
        self._lost = weather.get(FaultKind.LOST_ANSWER, 0.0)
        self._slow = weather.get(FaultKind.SEND_SLOW, 0.0)
        self._is_calm = False

    def calm(self) -> None:
        """Everything is well from now on, but for messages that are bad or deadly in themselves."""
        self.mood = Mood.UP
        self._nacks = self._lost = self._slow = 0.0
        self._latency = min(self._latency, 0.4 * self._patience)
        self._is_calm = True
        self._timeline.after(_SLOW_FOR, self._quicken)

    def _quicken(self) -> None:
        self._latency = min(self._latency, _QUICK)

    def delay(self) -> float:
        """How long one way takes."""
        slow = 20 * self._latency if self._slow and self._dice.random() < self._slow else self._latency
        return self._dice.random() * slow

    def send(self, send: Send) -> None:
        """It is on the wire: it arrives whatever becomes of its sender."""
        self._timeline.after(self.delay(), self._arrive, send)

    def check(self) -> None:
        """`TransportUnavailable` when nobody is there."""
        if self.mood in (Mood.REFUSES, Mood.BREAKS):
            raise TransportUnavailable(f"{self.name} {self.mood.value}")

    # --- taking ---

    def _arrive(self, send: Send) -> None:
        match self.mood:
            case Mood.REFUSES:
                self._later(partial(send.broke, "no connection", mid_send=False))
            case Mood.BREAKS:
                self._later(partial(send.broke, "the connection broke", mid_send=True))
            case Mood.HANGS:
                pass
            case Mood.NACKS:
                self._later(partial(send.answered, [Outcome(False, "refused")] * len(send.messages)))
            case _:
                self._take(send)

    def _take(self, send: Send) -> None:
        outcomes: list[Outcome] = []
        for message in send.messages:
            nature = message.headers.get(NATURE)
            if nature == Nature.DEADLY:
                self._ledger.seen["deadly"] += 1
                send.die()
                return
            if nature == Nature.BREAKING and not self._is_calm:
                self._ledger.seen["breaking"] += 1
                self._break(send, outcomes)
                return
            outcomes.append(self._taken(message, nature))
        self._answer(send, outcomes)

    def _taken(self, message: Message, nature: str | None) -> Outcome:
        if nature == Nature.BAD:
            return Outcome(False, "rejected", rejected=True)
        if nature == Nature.SOUR and not self._is_calm:
            return Outcome(False, "refused")
        if self._nacks and self._dice.random() < self._nacks:
            after = timedelta(seconds=0.2) if self._dice.random() < 0.2 else None
            return Outcome(False, "refused", retry_after=after)
        self._ledger.took(self.name, message, self._timeline.now)
        if self._trace.is_on:
            self._trace(self.name, f"takes {message.id} of {message.key}")
        return Outcome(True)

    def _answer(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        """Most answers arrive. Of those that do not, some break the connection, some are waited for in vain."""
        if not self._lost or self._dice.random() >= self._lost:
            self._later(partial(send.answered, outcomes))
        elif self._dice.random() < 0.5:
            self._break(send, outcomes[: self._dice.randrange(len(outcomes))])

    def _break(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        """The connection breaks. What was answered before that is known, if the transport can tell."""
        if outcomes and self._dice.random() < 0.5:
            lost = [Outcome(False, "the connection broke", lost=True)] * (len(send.messages) - len(outcomes))
            self._later(partial(send.answered, [*outcomes, *lost]))
        else:
            self._later(partial(send.broke, "the connection broke", mid_send=True))

    def _later(self, call: Callable[[], None]) -> None:
        self._timeline.after(self.delay(), call)
