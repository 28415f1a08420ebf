"""A simulated destination: it accepts and refuses messages, hangs, and breaks connections."""

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
from proof.simulation.checker import DeliveryChecker
from proof.simulation.scenario import FaultKind
from proof.simulation.trace import Trace
from proof.simulation.virtual_time import Timeline

__all__ = [
    "ADDRESSES",
    "EFFECT_HEADER",
    "REFUSED_BY_STORE",
    "Broker",
    "BrokerMode",
    "MessageEffect",
    "Send",
    "find_address",
    "list_firsts",
]

ADDRESSES: Final = ("left", "middle", "right")
"""Addresses of a destination that has several."""

_SLOW_FOR: Final = 1.0
_FAST: Final = 0.03
"""Latency of a slow destination some time after the last fault, so that the run comes to its end."""
EFFECT_HEADER: Final = "effect"
"""The header that says what a message does to those who send or receive it."""


UNSENT: Final = Outcome(False, "not sent", unsent=True)
_UNSENT_SHARE: Final = 0.05


class MessageEffect(StrEnum):
    """What a message does to those who send or receive it."""

    REJECTED = "rejected"
    """It is rejected."""
    REFUSED = "refused"
    """It is refused, until faults end."""
    REFUSED_ALONE = "refused alone"
    """It is refused after the faults, in the quiet phase."""
    KILLS_RELAY = "kills relay"
    """It kills the relay that sends it."""
    BREAKS_CONNECTION = "breaks connection"
    """It breaks every connection it is sent on, until faults end. Alone it would look like an outage."""
    DELIVERY_UNRECORDABLE = "delivery unrecordable"
    """The store refuses to record its delivery. It can be closed as failed."""
    UNPARKABLE = "unparkable"
    """The store refuses to let it wait. It can be closed."""
    UNRECORDABLE = "unrecordable"
    """The store refuses to record anything about it, until faults end."""


REFUSED_BY_STORE: Final = (
    MessageEffect.DELIVERY_UNRECORDABLE, MessageEffect.UNPARKABLE, MessageEffect.UNRECORDABLE,
)  # fmt: skip


class BrokerMode(StrEnum):
    """How a destination treats everything that it is sent."""

    UP = "up"
    REFUSES = "refuses connections"
    BREAKS = "breaks connections"
    HANGS = "does not answer"
    NACKS = "refuses everything"


def find_address(message: Message) -> str:
    """Return the address of a message. Messages of one key have different ones."""
    return ADDRESSES[message.message_id.int % len(ADDRESSES)]


def list_firsts(messages: Sequence[Message]) -> list[Message]:
    """List the first message of each key, and all without a key: those that a send surely tries."""
    firsts: dict[str | int, Message] = {}
    for message in messages:
        firsts.setdefault(message.id if message.key is None else message.key, message)
    return list(firsts.values())


class Send:
    """A batch on its way to a destination, with the future of its answer."""

    __slots__ = ("answer", "die", "messages")

    def __init__(
        self, messages: Sequence[Message], answer: asyncio.Future[Sequence[Outcome]], *, die: Callable[[], None]
    ) -> None:
        self.messages = messages
        self.answer = answer
        self.die = die
        """Called when the batch holds a message that kills relays."""

    def answer_with(self, outcomes: Sequence[Outcome]) -> None:
        if not self.answer.done():
            self.answer.set_result(outcomes)

    def fail(self, text: str, *, mid_send: bool) -> None:
        if not self.answer.done():
            self.answer.set_exception(TransportUnavailable(text, mid_send=mid_send))


class Broker:
    """One destination, shared by all relays."""

    def __init__(
        self,
        name: str,
        *,
        timeline: Timeline,
        rng: Random,
        deliveries: DeliveryChecker,
        trace: Trace,
        latency: float,
        send_timeout: float,
        fault_rates: dict[FaultKind, float],
    ) -> None:
        self.name = name
        self.mode = BrokerMode.UP
        self.blocked: dict[str, Outcome] = {}
        """Addresses that take nothing, and what they answer."""
        self._timeline = timeline
        self._rng = rng
        self._deliveries = deliveries
        self._trace = trace
        self._latency = latency
        self._send_timeout = send_timeout
        """How long relays wait for an answer."""
        self._nacks = fault_rates.get(FaultKind.NACK, 0.0)
        self._lost = fault_rates.get(FaultKind.LOST_ANSWER, 0.0)
        self._slow = fault_rates.get(FaultKind.SEND_SLOW, 0.0)
        self._faults_ended = False
        self._is_quiet = True

    def end_quiet(self) -> None:
        """End the quiet phase: from now on its bad message is taken too."""
        self._is_quiet = False

    def end_faults(self) -> None:
        """End all faults, except for messages that are rejected or kill relays."""
        self.mode = BrokerMode.UP
        self.blocked.clear()
        self._nacks = self._lost = self._slow = 0.0
        self._latency = min(self._latency, 0.4 * self._send_timeout)
        self._faults_ended = True
        self._timeline.after(_SLOW_FOR, self._speed_up)

    def _speed_up(self) -> None:
        self._latency = min(self._latency, _FAST)

    def delay(self) -> float:
        """Draw the latency of one way."""
        slow = 20 * self._latency if self._slow and self._rng.random() < self._slow else self._latency
        return self._rng.random() * slow

    def send(self, send: Send) -> None:
        """Send a batch. It arrives even if its sender dies."""
        for message in list_firsts(send.messages):
            self._deliveries.record_try(message)  # what follows in a run is tried only when those before it are taken
        self._timeline.after(self.delay(), self._arrive, send)

    def check(self) -> None:
        """Raise `TransportUnavailable` if the destination cannot be reached."""
        if self.mode in (BrokerMode.REFUSES, BrokerMode.BREAKS):
            raise TransportUnavailable(f"{self.name} {self.mode.value}")

    # --- at the destination ---

    def _arrive(self, send: Send) -> None:
        match self.mode:
            case BrokerMode.REFUSES:
                self._later(partial(send.fail, "no connection", mid_send=False))
            case BrokerMode.BREAKS:
                self._later(partial(send.fail, "the connection broke", mid_send=True))
            case BrokerMode.HANGS:
                pass
            case BrokerMode.NACKS:
                firsts = list_firsts(send.messages)
                answers = [Outcome(False, "refused") if message in firsts else UNSENT for message in send.messages]
                self._later(partial(send.answer_with, answers))
            case _:
                self._take(send)

    def _take(self, send: Send) -> None:
        outcomes: list[Outcome] = []
        begun: set[str] = set()
        ended: set[str] = set()
        for message in send.messages:
            if message.key is not None and message.key in begun:
                self._deliveries.seen["run"] += 1
                if message.key in ended or self._leaves_unsent():
                    ended.add(message.key)
                    outcomes.append(UNSENT)
                    continue
                self._deliveries.record_try(message)
            effect = message.headers.get(EFFECT_HEADER)
            if effect == MessageEffect.KILLS_RELAY:
                self._deliveries.seen["relay killed by message"] += 1
                send.die()
                return
            if effect == MessageEffect.BREAKS_CONNECTION and not self._faults_ended:
                self._deliveries.seen["connection broken by message"] += 1
                self._break(send, outcomes)
                return
            outcomes.append(self._take_one(message, effect))
            if message.key is not None:
                begun.add(message.key)
                if not outcomes[-1].delivered:
                    self._end_run(message.key, ended)
        self._answer(send, outcomes)

    def _end_run(self, key: str, ended: set[str]) -> None:
        """Take nothing more of a key in this send: one of its messages was not taken."""
        self._deliveries.seen["run ended"] += 1
        ended.add(key)

    def _leaves_unsent(self) -> bool:
        """Draw whether a run ends here for no reason, as one of handlers does when it takes long."""
        return self._rng.random() < _UNSENT_SHARE

    def _take_one(self, message: Message, effect: str | None) -> Outcome:
        if self.blocked and (refusal := self.blocked.get(find_address(message))) is not None:
            self._deliveries.seen["refused by address"] += 1
            return refusal
        if effect == MessageEffect.REJECTED:
            return Outcome(False, "rejected", rejected=True)
        if effect == MessageEffect.REFUSED_ALONE and self._is_quiet:
            return Outcome(False, "refused")
        if effect == MessageEffect.REFUSED and not self._faults_ended:
            return Outcome(False, "refused")
        if self._nacks and self._rng.random() < self._nacks:
            after = timedelta(seconds=0.2) if self._rng.random() < 0.2 else None
            return Outcome(False, "refused", retry_after=after)
        self._deliveries.record_delivery(self.name, message, self._timeline.now)
        if self._trace.is_on:
            self._trace(self.name, f"takes {message.id} of {message.key}")
        return Outcome(True)

    def _answer(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        """Answer, or lose the answer: then the connection breaks, or the sender waits until its timeout."""
        if not self._lost or self._rng.random() >= self._lost:
            self._later(partial(send.answer_with, outcomes))
        elif self._rng.random() < 0.5:
            self._break(send, outcomes[: self._rng.randrange(len(outcomes))])

    def _break(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        """Break the connection. What was answered before is known to the sender, or is not."""
        if outcomes and self._rng.random() < 0.5:
            lost = [Outcome(False, "the connection broke", lost=True)] * (len(send.messages) - len(outcomes))
            self._later(partial(send.answer_with, [*outcomes, *lost]))
        else:
            self._later(partial(send.fail, "the connection broke", mid_send=True))

    def _later(self, call: Callable[[], None]) -> None:
        self._timeline.after(self.delay(), call)
