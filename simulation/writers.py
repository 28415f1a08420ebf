"""Writers: transactions that draw ids early and commit late, in any order but one at a time per key."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from pillarbox.message import SKIPPED_DESTINATION, Kind, Message, partition_of
from pillarbox.names import Names
from pillarbox.protocols import Insert
from simulation.broker import NATURE, Nature
from simulation.clocks import EPOCH
from simulation.place import Place
from simulation.scenario import LANES
from simulation.store import WatchedTransaction
from simulation.weather import Weather

__all__ = ["Writers"]

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
        self._is_poisoned = Weather.POISON not in place.scenario.weather
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
        delay = timedelta(seconds=dice.random()) if self._is(Weather.DEFERRED) else None
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
        return partition_of(key, message_id) % (LANES if key is None else self._place.scenario.lanes)

    def _nature(self) -> Nature | None:
        if not self._is_poisoned and self._is(Weather.POISON):
            self._is_poisoned = True
            return self._place.dice.choice([Nature.DEADLY, Nature.DEADLY, Nature.BREAKING])
        if self._is(Weather.BAD):
            return Nature.BAD
        return Nature.SOUR if self._is(Weather.SOUR) else None

    def _is(self, weather: Weather) -> bool:
        share = self._place.scenario.weather.get(weather, 0.0)
        return share > 0 and self._place.dice.random() < share

    def _end(self, transaction: WatchedTransaction, keys: set[str]) -> None:
        if self._is(Weather.ROLLBACK):
            self._place.ledger.seen["rolled back"] += 1
            self._place.trace("writer", f"rolls back {transaction.told()}")
            transaction.rollback()
        else:
            self._place.trace("writer", f"commits {transaction.told()}")
            transaction.commit()
        self._busy -= keys
        self._left -= 1
