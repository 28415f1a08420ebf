"""The network between a process and the store: latency, disconnects, and requests whose outcome stays unknown."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, cast

from msgspec.structs import replace

from pillarbox.contracts.store import Store, StoreFeatures
from pillarbox.errors import StoreUnavailable
from proof.simulation.scenario import FaultKind
from proof.simulation.store import WatchedStore
from proof.simulation.trace import Trace, format_call
from proof.simulation.virtual_time import ProcessLoop, Timeline

__all__ = ["Network", "StoreConnection"]

_WRITES: Final = frozenset({"claim", "settle", "take", "release"})
_LATEST: Final = 1.0
"""Seconds after which an abandoned request reaches the store at the latest."""


class Network:
    """Latency and errors of calls to the store, the same for all processes."""

    def __init__(
        self,
        timeline: Timeline,
        rng: Random,
        *,
        latency: float,
        slow_claims: float,
        fault_rates: dict[FaultKind, float],
        trace: Trace,
    ) -> None:
        self.timeline = timeline
        self.rng = rng
        self.trace = trace
        self._latency = latency
        self._slow_claims = slow_claims
        self._errors = fault_rates.get(FaultKind.STORE_ERROR, 0.0)
        self._slow = fault_rates.get(FaultKind.STORE_SLOW, 0.0)

    def end_faults(self) -> None:
        """End all faults."""
        self._errors = self._slow = self._slow_claims = 0.0

    def delay_call(self, name: str) -> float:
        """Draw what a call of this name takes longer than others."""
        is_slow = self._slow_claims > 0 and name == "claim" and self.rng.random() < self._slow_claims
        return self.rng.uniform(0.05, 0.4) if is_slow else 0.0

    def fails(self) -> bool:
        """Return whether this call gets no answer."""
        return self._errors > 0 and self.rng.random() < self._errors

    def delay(self) -> float:
        """Draw the latency of one way."""
        if self._slow and self.rng.random() < self._slow:
            return self.rng.uniform(0.05, 0.4)
        return self.rng.random() * self._latency


class Request:
    """A call of the store. It takes effect before it is answered, or after its sender gave up, or never."""

    __slots__ = (
        "_call",
        "_connection",
        "_fails",
        "_is_lost",
        "_name",
        "_network",
        "_outcome",
        "_sent_at",
        "_session",
        "answer",
    )

    def __init__(
        self, connection: StoreConnection, network: Network, call: partial[Coroutine[Any, Any, Any]], *, name: str
    ) -> None:
        self._connection = connection
        self._network = network
        self._call = call
        self._name = name
        self._sent_at = network.timeline.now
        self._session = connection.session
        self._is_lost = connection.drops(name)
        self._fails = self._is_lost or network.fails()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self.answer: asyncio.Future[Any] = connection.loop.create_future()

    def send(self) -> None:
        """Send it."""
        network = self._network
        if not self._fails:
            late = network.delay_call(self._name)
            if network.rng.random() < 0.3 and not late:
                self._land()
            else:
                self._later(self._connection.delay() + late, self._land)
            return
        fate, wait = network.rng.random(), self._connection.delay() + network.rng.choice([0.0, 0.0, 0.3])
        if fate < 0.4 or self._is_lost:  # it gets nowhere
            self._later(wait, self._give_up)
        elif fate < 0.8:  # its answer is lost
            self._later(wait, self._land)
        else:  # it lands when nobody waits for it any more
            self._later(wait, self._give_up)
            self._later(wait + network.rng.random() * _LATEST, self._land)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._network.timeline.after(seconds, what)

    def _land(self) -> None:
        """Take effect in the store. Half of what was under way when its process died does."""
        if not self._connection.loop.is_dead or self._network.rng.random() < 0.5:
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
            self._connection.on_step()
        if self._network.trace.is_on:
            self._network.trace(
                self._connection.name, format_call(self._name, self._call.args, self._call.keywords, error or value)
            )
        lag = self._connection.extra_lag(self._name)
        if not lag and self._network.timeline.now > self._sent_at and self._network.rng.random() < 0.5:
            self._hear()
        else:
            self._later(self._connection.delay() + lag, self._hear)

    def _hear(self) -> None:
        connection, (value, error) = self._connection, self._outcome
        if self._fails or connection.is_disconnected or connection.session != self._session:
            self._give_up()
        elif self.answer.done() or connection.loop.is_dead:
            return
        elif error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)

    def _give_up(self) -> None:
        if not self.answer.done() and not self._connection.loop.is_dead:
            self.answer.set_exception(StoreUnavailable("the line broke"))


class StoreConnection:
    """The connection of one process to the store. The relay uses it as its `Store`."""

    def __init__(
        self,
        store: WatchedStore,
        network: Network,
        *,
        name: str,
        loop: ProcessLoop,
        notifies: bool,
        on_step: Callable[[], None],
    ) -> None:
        self.on_step = on_step
        """Called when a write has taken effect."""
        self.name = name
        self.loop = loop
        self.is_disconnected = False
        self.slowness = 0.0
        """Seconds that each way takes longer, at most."""
        self.renewal_lag = 0.0
        """Seconds by which the answer to a renewal comes later."""
        self.drops_renewals = False
        """Whether renewals are lost while everything else gets through."""
        self.session = 0
        """The number of its session: what was asked in an earlier one is never answered."""
        self.features: StoreFeatures = replace(store.features, notifies=notifies)
        self._store = store
        self._network = network
        for call, _ in inspect.getmembers(Store, inspect.iscoroutinefunction):
            if not hasattr(type(self), call):
                setattr(self, call, partial(self._call, call, getattr(store, call)))

    @property
    def store(self) -> Store:
        """Itself, as the relay knows it."""
        return cast("Store", self)

    async def open(self) -> None:
        await self._call("open", self._store.open)

    async def close(self) -> None:
        """Do nothing."""

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
        if self.loop.is_dead:
            raise StoreUnavailable("the process is dead")
        request = Request(self, self._network, partial(method, *args, **options), name=name)
        request.send()
        return request.answer

    def restore(self) -> None:
        """End all faults of this connection."""
        self.is_disconnected, self.slowness = False, 0.0
        self.drops_renewals, self.renewal_lag = False, 0.0

    def delay(self) -> float:
        """Draw the latency of one way."""
        seconds = self._network.delay()
        return seconds + self.slowness * self._network.rng.random() if self.slowness else seconds

    def drops(self, name: str) -> bool:
        """Return whether a call of this name is lost."""
        return self.is_disconnected or (self.drops_renewals and name == "renew")

    def extra_lag(self, name: str) -> float:
        """Return how many seconds later than usual a call of this name is answered."""
        return self.renewal_lag if name == "renew" else 0.0

    def reset(self) -> None:
        """Lose the connection, and with it the position of the reader."""
        self.session += 1
        self._store.forget_session()

    def wakeups(self, wake: Callable[[], None]) -> _Wakeups:
        return _Wakeups(self, self._store, self._network, wake)


class _Wakeups:
    """Wakes the process some time after a commit, while the block runs and a relay has asked for it."""

    is_listening = True

    def __init__(
        self, connection: StoreConnection, store: WatchedStore, network: Network, wake: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._data = store.data
        self._network = network
        self._wake = wake

    def _notify(self) -> None:
        if any(relay.asleep for relay in self._data.relays.values()) and not self._network.fails():
            self._network.timeline.after(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        if not self._connection.loop.is_dead and not self._connection.is_disconnected:
            self._connection.loop.call_soon(self._wake)

    async def __aenter__(self) -> _Wakeups:
        self._data.on_commit.append(self._notify)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.on_commit.remove(self._notify)
