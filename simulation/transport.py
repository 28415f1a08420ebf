"""`Transport` as one relay sees a destination."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome, TransportFeatures
from simulation.broker import Broker, Mood, Send
from simulation.evidence import Evidence
from simulation.loop import ProcessLoop
from simulation.timeline import Timeline

__all__ = ["SimulatedTransport"]


class SimulatedTransport:
    """A connection of one life of one relay. A lone one carries one message, and is told apart."""

    def __init__(
        self,
        broker: Broker,
        *,
        life: str,
        is_lone: bool,
        batch: int,
        loop: ProcessLoop,
        timeline: Timeline,
        evidence: Evidence,
        sending: Callable[[Sequence[Message]], None],
        moment: Callable[[], None],
        die: Callable[[], None],
    ) -> None:
        self.features = TransportFeatures(name="simulated", batch=batch)
        self._broker = broker
        self._life = life
        self._is_lone = is_lone
        self._loop = loop
        self._timeline = timeline
        self._evidence = evidence
        self._sending = sending
        self._moment = moment
        self._die = die
        self._made_at = timeline.now
        """For a lone message the attempt begins with its connection."""

    async def open(self) -> None:
        await self._ask()

    async def close(self) -> None: ...

    async def ping(self) -> None:
        await self._ask()

    async def _ask(self) -> None:
        asked = self._loop.create_future()
        self._timeline.after(self._broker.delay(), self._come, asked)
        await asked

    def _come(self, asked: asyncio.Future[None]) -> None:
        if asked.done() or self._broker.mood is Mood.HANGS:
            return
        try:
            self._broker.check()
        except TransportUnavailable as error:
            asked.set_exception(error)
        else:
            asked.set_result(None)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._sending(messages)
        began = self._made_at if self._is_lone else self._timeline.now
        self._evidence.began(self._life, self._broker.name, messages, began)
        answer: asyncio.Future[Sequence[Outcome]] = self._loop.create_future()
        self._broker.send(Send(messages, answer, die=self._die))
        self._moment()
        try:
            outcomes = await answer
        except BaseException as error:
            self._unheard(messages, error)
            raise
        self._heard(messages, outcomes)
        self._moment()
        return outcomes

    def _unheard(self, messages: Sequence[Message], error: BaseException) -> None:
        if self._loop.is_dead:
            return
        for message in messages:
            self._evidence.refused(self._life, self._broker.name, message.id)
            if self._is_lone and isinstance(error, TransportUnavailable) and error.mid_send:
                self._evidence.died_alone(message.id)

    def _heard(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        name, now = self._broker.name, self._timeline.now
        answers = list(zip(messages, outcomes, strict=True))
        for message, outcome in answers:
            if outcome.delivered:
                self._evidence.acknowledged(self._life, name, message.id, now)
        for message, outcome in answers:
            if not outcome.delivered:
                self._evidence.refused(self._life, name, message.id, rejected=outcome.rejected)
