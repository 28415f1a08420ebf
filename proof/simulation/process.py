"""One simulated relay process: the real relay, started, frozen, stopped, killed and started again."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.errors import StoreUnavailable, TransportUnavailable
from pillarbox.message import SKIPPED_DESTINATION, Message
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.lease import Lease
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from proof.simulation.checker import Breach, Evidence
from proof.simulation.destination import Broker, Mood, Send
from proof.simulation.environment import Place
from proof.simulation.network import StoreLine
from proof.simulation.scenario import CLOCK_MARGIN, LANES, Scenario
from proof.simulation.telemetry import RelayTelemetry
from proof.simulation.virtual_time import ProcessClock, ProcessLoop, Timeline

__all__ = ["Process", "simulated"]

_NEVER: Final = 1e9
_SHORTEST_NAP: Final = 0.02
_SWEEP: Final = 1.0
_FIRST: Final = timedelta(seconds=0.2)
_LONGEST: Final = timedelta(seconds=1)
"""Leases are short here, and so is what else takes seconds: more happens in a storm, and its end comes sooner."""


@contextmanager
def simulated(scenario: Scenario) -> Iterator[None]:
    """Ids come from the seed; there are few lanes; the safety net is taken away, as nothing may need it."""
    dice = Random(scenario.seed)

    def drawn_id() -> UUID:
        return UUID(int=dice.getrandbits(128), version=4)

    changes: dict[str, object] = {
        "pillarbox.relay.lease.uuid4": drawn_id,
        "pillarbox.relay.membership.PARTITIONS": LANES,
        "pillarbox.relay.reader._REREAD_INTERVAL": _NEVER,
        "pillarbox.relay.reader._BLOCKED_INTERVAL": _SWEEP,
        "pillarbox.relay.polling._SHORTEST": _SHORTEST_NAP,
        "pillarbox.relay.destination.Breaker": partial(Breaker, first=_FIRST, longest=_LONGEST),
        "pillarbox.relay.relay.version": lambda _: "simulated",
    }
    with ExitStack() as patches:
        for name, new in changes.items():
            patches.enter_context(patch(name, new))
        if not scenario.skips:
            patches.enter_context(patch.object(Relay, "_build_pipelines", _without_skipping))
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


_build_pipelines: Final = Relay._build_pipelines


def _without_skipping(relay: Relay, lease: Lease) -> dict[str, Pipeline]:
    """Where nothing is skipped, nobody needs to look for it: that is half of what an idle relay does."""
    pipelines = _build_pipelines(relay, lease)
    pipelines.pop(SKIPPED_DESTINATION)
    return pipelines


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


class Process:
    """A place in the deployment: whatever happens to the relay that runs there, another one follows."""

    def __init__(
        self,
        name: str,
        place: Place,
        *,
        serves: Sequence[DestinationSettings],
        once: bool = False,
        on_death: Callable[[Process], None],
        on_moment: Callable[[Process], None],
    ) -> None:
        self.name = name
        self._place = place
        self._on_death = on_death
        self._on_moment = on_moment
        spread = place.scenario.rate_spread
        rate = 1 + place.dice.uniform(-spread, spread)
        self._clock = ProcessClock(place.timeline, rate=rate, offset=place.dice.uniform(0, 1e4))
        self._serves = serves
        self._once = once
        self.is_running = False
        self._lives: dict[tuple[str, str], int] = {}

    # --- its life ---

    def start(self) -> None:
        """A new process: nothing is left of the one before."""
        place = self._place
        self.is_running = True
        self.loop = ProcessLoop(place.timeline, self._clock, told=self._bug)  # type: ignore[abstract]
        self.line = StoreLine(
            place.connect(), place.network, name=self.name, loop=self.loop, notifies=place.scenario.wakes,
            moment=self._moment,
        )  # fmt: skip
        self.relay = Relay(
            self.line.store,
            [Destination(self._opener(settings.name), settings) for settings in self._serves],
            settings=place.scenario.settings,
            clock=self._clock,
            telemetry=RelayTelemetry(self.name, place),
            seed=place.dice.getrandbits(32),
        )
        place.trace(self.name, "starts")
        self._task = self.loop.create_task(self._run(self.relay, self.loop))

    async def _run(self, relay: Relay, loop: ProcessLoop) -> None:
        try:
            await relay.run(once=self._once)
        except Exception as error:
            if not isinstance(error, StoreUnavailable) or relay.relay_id is not None:
                loop.call_exception_handler({"message": "the relay ended", "exception": error})
        if not loop.is_dead:
            self._place.trace(self.name, "ends")
            self._place.timeline.after(0.0, self.kill)

    def _bug(self, context: dict[str, Any]) -> None:
        text = f"{self.name}: {context.get('message')}: {_told(context.get('exception'))}"
        self._place.ledger.fault(Breach.CRASHED, self._place.timeline.now, text)

    # --- what is done to it ---

    def kill(self) -> None:
        """Dead at once, in the middle of whatever it does."""
        if self.is_running:
            self.is_running = False
            self._place.trace(self.name, "is dead")
            self.loop.kill()
            self._on_death(self)

    def end(self) -> None:
        """The simulation is over."""
        if self.is_running:
            self.is_running = False
            self.loop.kill()

    def stop(self) -> None:
        """The first signal."""
        if self.is_running:
            self._place.trace(self.name, "is told to stop")
            self.relay.stop()

    def freeze(self) -> None:
        """Nothing moves in it, and it does not know."""
        self.loop.is_frozen = True

    def thaw(self) -> None:
        """It goes on as if nothing had happened."""
        if self.loop.is_frozen:
            self._place.trace(self.name, "goes on")
            self.loop.thaw()

    # --- sending ---

    def _opener(self, destination: str) -> Callable[[], Transport]:
        loop = self.loop
        return lambda: self._connection(destination, loop)

    def _connection(self, destination: str, loop: ProcessLoop) -> Transport:
        place, life = self._place, str(self.relay.relay_id)
        number = self._lives[life, destination] = self._lives.get((life, destination), 0) + 1
        return SimulatedTransport(
            place.brokers[destination], life=life, is_lone=number > 1, batch=place.scenario.send_batch, loop=loop,
            timeline=place.timeline, evidence=place.evidence, sending=lambda messages: self._sending(life, messages),
            die=lambda: self._die(loop), moment=self._moment,
        )  # fmt: skip

    def _moment(self) -> None:
        """One at which it would hurt to be struck."""
        if self._place.calm_at is None:
            self._on_moment(self)

    def _die(self, loop: ProcessLoop) -> None:
        """A message killed it. Another process in its place, or one that is frozen, is not to blame."""
        if loop is self.loop:
            self.kill()

    def _sending(self, life: str, messages: Sequence[Message]) -> None:
        place, now = self._place, self._place.timeline.now
        if place.trace.is_on:
            place.trace(self.name, f"sends {[message.id for message in messages]} to {messages[0].destination}")
        row = place.data.relays.get(UUID(life))
        expired = row is None or row.expires_at is None or row.expires_at <= place.clock.now()
        is_told = not place.clock.was_set and place.scenario.rate_spread < CLOCK_MARGIN
        if expired and is_told:
            text = f"{self.name} sends {[message.id for message in messages]} without a lease"
            place.ledger.fault(Breach.OVERRUN, now, text)


def _told(error: BaseException | None) -> str:
    """The error that is at the bottom of it, and the line that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None or error.__traceback__ is None:
        return "no error"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
