"""People who act while relays work: redrive, replay, discard, defer, pause, resume."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pillarbox.contracts.store import Selection
from pillarbox.contracts.writer import Insert
from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.message import SKIPPED_DESTINATION, Kind, Message, Names, State, Waits, compute_partition
from proof.simulation.destination import NATURE, Nature
from proof.simulation.environment import Place
from proof.simulation.fault_kinds import FaultKind
from proof.simulation.scenario import LANES
from proof.simulation.store import WatchedTransaction
from proof.simulation.virtual_time import EPOCH

__all__ = ["Operators", "Writers"]

_BY = "a person"


class Operators:
    """Meddles at random during the storm; afterwards mends what only a person can."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store = place.connect()
        self._often = place.scenario.weather.get(FaultKind.OPERATE, 0.0)
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


_NAMES: Final = Names()


class Writers:
    """All who write. `is_done` once the last transaction has ended."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store = place.connect()
        self._keys = [f"k{number}" for number in range(place.scenario.keys)]
        self._hot = place.dice.choice(self._keys)
        self._busy: set[str] = set()
        self._left = place.scenario.transactions
        self._written = 0
        self._is_poisoned = FaultKind.POISON not in place.scenario.weather
        for _ in range(place.scenario.transactions):
            begins = max(0.0, place.dice.uniform(-0.3, 0.9)) * place.scenario.storm
            place.timeline.at(begins, self._begin)

    @property
    def is_done(self) -> bool:
        """Nothing more will be committed."""
        return self._left == 0

    def _begin(self) -> None:
        dice = self._place.dice
        free = [key for key in self._keys if key not in self._busy]
        weights = [3 if key == self._hot else 1 for key in free]
        keys = set(dice.choices(free, weights, k=dice.choice([1, 1, 2]))) if free else set()
        transaction = self._store.transaction()
        self._busy |= keys
        self._write(transaction, sorted(keys))
        lasts = dice.choice([0.0, 0.02, 0.2, 0.5]) * dice.random() * 2
        if dice.random() < 0.5:
            self._place.timeline.after(lasts * dice.random(), self._write, transaction, sorted(keys))
        self._place.timeline.after(lasts, self._end, transaction, keys)

    def _write(self, transaction: WatchedTransaction, keys: list[str]) -> None:
        for _ in range(self._place.dice.choice([1, 1, 2, 4])):
            self._insert(transaction, keys)

    def _insert(self, transaction: WatchedTransaction, keys: list[str]) -> None:
        dice, place = self._place.dice, self._place
        key = dice.choice([*keys, None]) if dice.random() < 0.3 or not keys else dice.choice(keys)
        names = list(place.brokers)
        if dice.random() < 0.5:
            names = [dice.choice(names)]
        if place.scenario.skips and dice.random() < 0.05:
            names = [SKIPPED_DESTINATION]
        delay = timedelta(seconds=dice.random()) if self._is(FaultKind.DEFERRED) else None
        self._written += 1
        nature = self._nature()
        messages = [self._message(name, key, nature) for name in names]
        transaction.insert(Insert(names=_NAMES, messages=messages, delay=delay))

    def _message(self, destination: str, key: str | None, nature: Nature | None) -> Message:
        message_id = UUID(int=self._written)
        headers = {} if nature is None else {NATURE: nature.value}
        return Message(
            0, message_id, destination, self._lane(key, message_id), Kind.EVENT, "t", "t", key, b"",
            "text/plain", headers, "/simulation", None, "c", None, EPOCH,
        )  # fmt: skip

    def _lane(self, key: str | None, message_id: UUID) -> int:
        return compute_partition(key, message_id) % (LANES if key is None else self._place.scenario.lanes)

    def _nature(self) -> Nature | None:
        if not self._is_poisoned and self._is(FaultKind.POISON):
            self._is_poisoned = True
            return self._place.dice.choice([Nature.DEADLY, Nature.DEADLY, Nature.BREAKING])
        if self._is(FaultKind.BAD):
            return Nature.BAD
        return Nature.SOUR if self._is(FaultKind.SOUR) else None

    def _is(self, weather: FaultKind) -> bool:
        share = self._place.scenario.weather.get(weather, 0.0)
        return share > 0 and self._place.dice.random() < share

    def _end(self, transaction: WatchedTransaction, keys: set[str]) -> None:
        if self._is(FaultKind.ROLLBACK):
            self._place.ledger.seen["rolled back"] += 1
            self._place.trace("writer", f"rolls back {transaction.told()}")
            transaction.rollback()
        else:
            self._place.trace("writer", f"commits {transaction.told()}")
            transaction.commit()
        self._busy -= keys
        self._left -= 1
