"""One simulated relay process: the real relay, started, frozen, stopped, killed and started again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pillarbox.errors import StoreUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Transport
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from simulation.clocks import ProcessClock
from simulation.faults import Breach
from simulation.line import StoreLine
from simulation.loop import ProcessLoop
from simulation.place import Place
from simulation.scenario import CLOCK_MARGIN
from simulation.telling import Telling
from simulation.transport import SimulatedTransport

__all__ = ["Process"]


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
            telemetry=Telling(self.name, place),
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
