"""Operators and writers, who act while relays work."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pillarbox.contracts.store import Selection
from pillarbox.contracts.writer import Insert
from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.message import SKIPPED_DESTINATION, Kind, Message, Names, State, Waits, compute_partition
from proof.simulation.destination import EFFECT_HEADER, REFUSED_BY_STORE, MessageEffect
from proof.simulation.environment import Environment
from proof.simulation.scenario import LANES, FaultKind
from proof.simulation.store import WatchedTransaction
from proof.simulation.virtual_time import EPOCH

__all__ = ["Operators", "Writers"]

_BY = "operator"


class Operators:
    """Operators who redrive, replay, discard, defer and pause at random, and afterwards decide what is held."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._store = env.connect()
        self._rate = env.scenario.fault_rates.get(FaultKind.OPERATE, 0.0)
        if self._rate:
            self._wait()

    def _wait(self) -> None:
        env = self._env
        at = env.timeline.now + env.rng.expovariate(self._rate)
        if at < env.scenario.fault_seconds:
            env.timeline.at(at, self._act)

    def _act(self) -> None:
        rng = self._env.rng
        acts = [self._redrive, self._redrive_elsewhere, self._replay, self._discard, self._defer, self._pause]
        rng.choice(acts)()
        self._wait()

    def _redrive(self) -> None:
        failed = Selection(states=[State.FAILED, State.DISCARDED])
        self._run(self._store.redrive(failed, by=_BY, limit=self._env.rng.choice([1, 3, 100])))

    def _redrive_elsewhere(self) -> None:
        to = self._env.rng.choice(list(self._env.brokers))
        self._run(self._store.redrive(Selection(states=list(State)), by=_BY, limit=1, to=to))

    def _replay(self) -> None:
        self._run(self._store.replay(Selection(after=self._draw_id()), by=_BY, limit=2))

    def _discard(self) -> None:
        self._run(self._store.discard(Selection(after=self._draw_id()), by=_BY, reason="unwanted", limit=1))

    def _defer(self) -> None:
        until = self._env.clock.now() + timedelta(seconds=self._env.rng.random())
        self._run(self._store.defer(Selection(after=self._draw_id()), until=until, by=_BY, limit=1))

    def _pause(self) -> None:
        name = self._env.rng.choice(list(self._env.brokers))
        self._run(self._store.pause(name, by=_BY, reason="maintenance"))
        self._env.timeline.after(self._env.rng.random(), self._resume, name)

    def _resume(self, name: str) -> None:
        self._run(self._store.resume(name, by=_BY))

    def _draw_id(self) -> int:
        return self._env.rng.randint(0, max(self._env.deliveries.rows, default=0))

    def _run(self, action: Coroutine[Any, Any, Any]) -> None:
        """Run an action at once: the operator's own connection is not under test."""
        try:
            action.send(None)
        except StopIteration as done:
            if done.value and self._env.trace.is_on:
                self._env.trace("operator", f"{getattr(action, '__name__', 'acts')}: {done.value}")
        except (IllegalTransition, NoSuchMessage):
            pass

    # --- after the faults ---

    def restore(self) -> None:
        """Resume what is paused, and redrive or discard what is held, again and again."""
        env = self._env
        for name in list(env.data.pauses):
            self._resume(name)
        for id in [id for id in env.data.open.ids() if _is_held(env, id)]:
            if env.rng.random() < 0.3:
                self._run(self._store.redrive(Selection(ids=[id]), by=_BY, limit=1))
            else:
                self._run(self._store.discard(Selection(ids=[id]), by=_BY, reason="given up", limit=1))
        env.timeline.after(0.5, self.restore)


def _is_held(env: Environment, id: int) -> bool:
    row = env.data.open.get(id)
    return row is not None and row.waits is Waits.HELD


_NAMES: Final = Names()


class Writers:
    """Writers of all transactions, some of which roll back."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._store = env.connect()
        self._keys = [f"k{number}" for number in range(env.scenario.keys)]
        self._hot = env.rng.choice(self._keys)
        self._busy: set[str] = set()
        self._open: list[WatchedTransaction] = []
        self._left = env.scenario.transactions
        self._written = 0
        self._is_poisoned = FaultKind.POISON not in env.scenario.fault_rates
        for _ in range(env.scenario.transactions):
            begins = max(0.0, env.rng.uniform(-0.3, 0.9)) * env.scenario.fault_seconds
            env.timeline.at(begins, self._begin)

    @property
    def is_done(self) -> bool:
        """Whether the last transaction has ended."""
        return self._left == 0

    def abort(self) -> None:
        """Roll back every open transaction: the server that they are on is gone."""
        for transaction in self._open:
            transaction.rollback()
        self._open.clear()

    def write_again(self, lost: Sequence[Message]) -> None:
        """Commit as many messages to the same destinations: their ids are those of the lost ones, in another order."""
        transaction = self._store.transaction()
        messages = []
        for message in reversed(lost):
            self._written += 1
            key = message.key if message.key not in self._busy else None
            messages.append(self._message(message.destination, key, None))
        transaction.insert(Insert(names=_NAMES, messages=messages))
        transaction.commit()

    def write_witnesses(self) -> None:
        """Write to every destination now and then while a message that kills relays is open.

        Nothing else may be left to send, and without a witness that the destination works no death counts.
        """
        env = self._env
        rows = (env.data.open.get(id) for id in list(env.data.open.ids()))
        if any(row is not None and row.headers.get(EFFECT_HEADER) == MessageEffect.KILLS_RELAY for row in rows):
            transaction = self._store.transaction()
            self._written += 1
            messages = [self._message(name, None, None) for name in env.brokers]
            transaction.insert(Insert(names=_NAMES, messages=messages))
            transaction.commit()
        env.timeline.after(env.scenario.settings.lease.total_seconds() / 2, self.write_witnesses)

    def write_one(self, destination: str, key: str, effect: MessageEffect | None) -> Message:
        """Commit one message in a transaction of its own; return it with its id."""
        transaction = self._store.transaction()
        self._written += 1
        message = self._message(destination, key, effect)
        transaction.insert(Insert(names=_NAMES, messages=[message]))
        transaction.commit()
        return next(one for one in self._env.data.messages() if one.message_id == message.message_id)

    def _begin(self) -> None:
        rng = self._env.rng
        free = [key for key in self._keys if key not in self._busy]
        weights = [3 if key == self._hot else 1 for key in free]
        keys = set(rng.choices(free, weights, k=rng.choice([1, 1, 2]))) if free else set()
        transaction = self._store.transaction()
        self._open.append(transaction)
        self._busy |= keys
        self._write(transaction, sorted(keys))
        lasts = rng.choice([0.0, 0.02, 0.2, 0.5]) * rng.random() * 2
        if rng.random() < 0.5:
            self._env.timeline.after(lasts * rng.random(), self._write, transaction, sorted(keys))
        self._env.timeline.after(lasts, self._end, transaction, keys)

    def _write(self, transaction: WatchedTransaction, keys: list[str]) -> None:
        if transaction not in self._open:
            return
        for _ in range(self._env.rng.choice([1, 1, 2, 4])):
            self._insert(transaction, keys)

    def _insert(self, transaction: WatchedTransaction, keys: list[str]) -> None:
        rng, env = self._env.rng, self._env
        key = rng.choice([*keys, None]) if rng.random() < 0.3 or not keys else rng.choice(keys)
        names = list(env.brokers)
        if rng.random() < 0.5:
            names = [rng.choice(names)]
        if env.scenario.skips and rng.random() < 0.05:
            names = [SKIPPED_DESTINATION]
        delay = timedelta(seconds=rng.random()) if self._is(FaultKind.DEFERRED) else None
        self._written += 1
        effect = self._choose_effect()
        messages = [self._message(name, key, effect) for name in names]
        transaction.insert(Insert(names=_NAMES, messages=messages, delay=delay))

    def _message(self, destination: str, key: str | None, effect: MessageEffect | None) -> Message:
        message_id = UUID(int=self._written)
        headers = {} if effect is None else {EFFECT_HEADER: effect.value}
        return Message(
            0, message_id, destination, self._lane(key, message_id), Kind.EVENT, "t", "t", key, b"",
            "text/plain", headers, "/simulation", None, "c", None, EPOCH,
        )  # fmt: skip

    def _lane(self, key: str | None, message_id: UUID) -> int:
        return compute_partition(key, message_id) % (LANES if key is None else self._env.scenario.lanes)

    def _choose_effect(self) -> MessageEffect | None:
        if not self._is_poisoned and self._is(FaultKind.POISON):
            self._is_poisoned = True
            return self._env.rng.choice(
                [MessageEffect.KILLS_RELAY, MessageEffect.KILLS_RELAY, MessageEffect.BREAKS_CONNECTION]
            )
        if self._is(FaultKind.UNRECORDABLE):
            return self._env.rng.choice(REFUSED_BY_STORE)
        if self._is(FaultKind.REJECTED):
            return MessageEffect.REJECTED
        return MessageEffect.REFUSED if self._is(FaultKind.REFUSED) else None

    def _is(self, kind: FaultKind) -> bool:
        share = self._env.scenario.fault_rates.get(kind, 0.0)
        return share > 0 and self._env.rng.random() < share

    def _end(self, transaction: WatchedTransaction, keys: set[str]) -> None:
        if transaction not in self._open:
            pass
        elif self._is(FaultKind.ROLLBACK):
            self._env.deliveries.seen["rolled back"] += 1
            self._env.trace("writer", f"rolls back {transaction.describe()}")
            transaction.rollback()
        else:
            self._env.trace("writer", f"commits {transaction.describe()}")
            transaction.commit()
        if transaction in self._open:
            self._open.remove(transaction)
        self._busy -= keys
        self._left -= 1
