"""One call to the store on its way: it lands at one moment and is answered at another, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pillarbox.errors import StoreUnavailable
from simulation.story import story
from simulation.timeline import Timeline
from simulation.trace import Trace
from simulation.weather import Weather

if TYPE_CHECKING:
    from simulation.line import StoreLine

__all__ = ["Network", "Request"]

_WRITES: Final = frozenset({"claim", "settle", "take", "release"})
_LATEST: Final = 1.0
"""How late a request may land that its sender has given up."""


class Network:
    """How long calls to the store take and which go wrong, for all processes alike."""

    def __init__(
        self, timeline: Timeline, dice: Random, *, latency: float, weather: dict[Weather, float], trace: Trace
    ) -> None:
        self.timeline = timeline
        self.dice = dice
        self.trace = trace
        self._latency = latency
        self._errors = weather.get(Weather.STORE_ERROR, 0.0)
        self._slow = weather.get(Weather.STORE_SLOW, 0.0)

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self._errors = self._slow = 0.0

    def fails(self) -> bool:
        """Whether this call gets no answer."""
        return self._errors > 0 and self.dice.random() < self._errors

    def delay(self) -> float:
        """How long one way takes."""
        if self._slow and self.dice.random() < self._slow:
            return self.dice.uniform(0.05, 0.4)
        return self.dice.random() * self._latency


class Request:
    """A call that takes effect at some moment before it is answered, or after its sender gave it up, or not at all."""

    __slots__ = (
        "_call",
        "_connection",
        "_fails",
        "_is_lost",
        "_line",
        "_name",
        "_network",
        "_outcome",
        "_sent_at",
        "answer",
    )

    def __init__(
        self, line: StoreLine, network: Network, call: partial[Coroutine[Any, Any, Any]], *, name: str
    ) -> None:
        self._line = line
        self._network = network
        self._call = call
        self._name = name
        self._sent_at = network.timeline.now
        self._connection = line.connection
        self._is_lost = line.loses(name)
        self._fails = self._is_lost or network.fails()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self.answer: asyncio.Future[Any] = line.loop.create_future()

    def send(self) -> None:
        """Put it on the wire."""
        network = self._network
        if not self._fails:
            if network.dice.random() < 0.3:
                self._land()
            else:
                self._later(self._line.delay(), self._land)
            return
        fate, wait = network.dice.random(), self._line.delay() + network.dice.choice([0.0, 0.0, 0.3])
        if fate < 0.4 or self._is_lost:  # it gets nowhere
            self._later(wait, self._give_up)
        elif fate < 0.8:  # its answer is lost
            self._later(wait, self._land)
        else:  # it lands when nobody waits for it any more
            self._later(wait, self._give_up)
            self._later(wait + network.dice.random() * _LATEST, self._land)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._network.timeline.after(seconds, what)

    def _land(self) -> None:
        """Its moment in the store. Of what was under way when its process died, half arrives."""
        if not self._line.loop.is_dead or self._network.dice.random() < 0.5:
            self._go_on(self._call())

    def _go_on(self, running: Coroutine[Any, Any, Any]) -> None:
        try:
            pause = running.send(None)
        except StopIteration as done:
            self._landed(done.value, None)
        except Exception as error:
            self._landed(None, error)
        else:
            self._later(pause, partial(self._go_on, running))

    def _landed(self, value: Any, error: BaseException | None) -> None:
        self._outcome = (value, error)
        if self._name in _WRITES:
            self._line.moment()
        if self._network.trace.is_on:
            self._network.trace(
                self._line.name, story(self._name, self._call.args, self._call.keywords, error or value)
            )
        lag = self._line.lag_of(self._name)
        if not lag and self._network.timeline.now > self._sent_at and self._network.dice.random() < 0.5:
            self._hear()
        else:
            self._later(self._line.delay() + lag, self._hear)

    def _hear(self) -> None:
        line, (value, error) = self._line, self._outcome
        if self._fails or line.is_cut or line.connection != self._connection:
            self._give_up()
        elif self.answer.done() or line.loop.is_dead:
            return
        elif error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)

    def _give_up(self) -> None:
        if not self.answer.done() and not self._line.loop.is_dead:
            self.answer.set_exception(StoreUnavailable("the line broke"))
