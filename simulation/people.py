"""People who act while relays work: redrive, replay, discard, defer, pause, resume."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.message import State, Waits
from pillarbox.protocols import Selection
from simulation.place import Place
from simulation.weather import Weather

__all__ = ["People"]

_BY = "a person"


class People:
    """Meddles at random during the storm; afterwards mends what only a person can."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store = place.connect()
        self._often = place.scenario.weather.get(Weather.OPERATE, 0.0)
        if self._often:
            self._wait()

    def _wait(self) -> None:
        place = self._place
        at = place.timeline.now + place.dice.expovariate(self._often)
        if at < place.scenario.storm:
            place.timeline.at(at, self._act)

    def _act(self) -> None:
        dice = self._place.dice
        acts = [self._redrive, self._redrive_elsewhere, self._replay, self._discard, self._defer, self._pause]
        dice.choice(acts)()
        self._wait()

    def _redrive(self) -> None:
        failed = Selection(states=[State.FAILED, State.DISCARDED])
        self._do(self._store.redrive(failed, by=_BY, limit=self._place.dice.choice([1, 3, 100])))

    def _redrive_elsewhere(self) -> None:
        to = self._place.dice.choice(list(self._place.brokers))
        self._do(self._store.redrive(Selection(), by=_BY, limit=1, to=to))

    def _replay(self) -> None:
        self._do(self._store.replay(Selection(after=self._some_id()), by=_BY, limit=2))

    def _discard(self) -> None:
        self._do(self._store.discard(Selection(after=self._some_id()), by=_BY, reason="unwanted", limit=1))

    def _defer(self) -> None:
        until = self._place.clock.now() + timedelta(seconds=self._place.dice.random())
        self._do(self._store.defer(Selection(after=self._some_id()), until=until, by=_BY, limit=1))

    def _pause(self) -> None:
        name = self._place.dice.choice(list(self._place.brokers))
        self._do(self._store.pause(name, by=_BY, reason="maintenance"))
        self._place.timeline.after(self._place.dice.random(), self._resume, name)

    def _resume(self, name: str) -> None:
        self._do(self._store.resume(name, by=_BY))

    def _some_id(self) -> int:
        return self._place.dice.randint(0, max(self._place.ledger.rows, default=0))

    def _do(self, action: Coroutine[Any, Any, Any]) -> None:
        """At once: the line of a person is not what is tested."""
        try:
            action.send(None)
        except StopIteration as done:
            if done.value and self._place.trace.is_on:
                self._place.trace("person", f"{getattr(action, '__name__', 'acts')}: {done.value}")
        except (IllegalTransition, NoSuchMessage):
            pass

    # --- afterwards ---

    def mend(self) -> None:
        """Resume what is paused, and decide on what is held, until nothing is."""
        place = self._place
        for name in list(place.data.pauses):
            self._resume(name)
        for id in [id for id in place.data.open.ids() if _is_held(place, id)]:
            if place.dice.random() < 0.3:
                self._do(self._store.redrive(Selection(ids=[id]), by=_BY, limit=1))
            else:
                self._do(self._store.discard(Selection(ids=[id]), by=_BY, reason="given up", limit=1))
        place.timeline.after(0.5, self.mend)


def _is_held(place: Place, id: int) -> bool:
    row = place.data.open.get(id)
    return row is not None and row.waits is Waits.HELD
