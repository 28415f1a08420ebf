"""The line between a process and the store: slow, cut, and silent about what became of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, cast

from msgspec.structs import replace

from pillarbox.contracts.store import Store, StoreFeatures
from pillarbox.errors import StoreUnavailable
from proof.simulation.fault_kinds import FaultKind
from proof.simulation.store import WatchedStore
from proof.simulation.trace import Trace, story
from proof.simulation.virtual_time import ProcessLoop, Timeline

__all__ = ["Network", "StoreLine"]

_WRITES: Final = frozenset({"claim", "settle", "take", "release"})
_LATEST: Final = 1.0
"""How late a request may land that its sender has given up."""


class Network:
    """How long calls to the store take and which go wrong, for all processes alike."""

    def __init__(
        self, timeline: Timeline, dice: Random, *, latency: float, weather: dict[FaultKind, float], trace: Trace
    ) -> None:
        self.timeline = timeline
        self.dice = dice
        self.trace = trace
        self._latency = latency
        self._errors = weather.get(FaultKind.STORE_ERROR, 0.0)
        self._slow = weather.get(FaultKind.STORE_SLOW, 0.0)

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


_CALLS: Final = (
    "now", "read", "read_due", "read_key", "blocked_keys", "next_due", "claim", "settle", "register", "renew",
    "registry", "take", "release", "leave", "forget", "redrive", "replay", "discard", "defer", "purge", "purge_ids",
    "purge_inbox", "pause", "resume", "pauses", "find", "journal", "counts",
)  # fmt: skip


class StoreLine:
    """`Store` as one process sees it."""

    def __init__(
        self,
        store: WatchedStore,
        network: Network,
        *,
        name: str,
        loop: ProcessLoop,
        notifies: bool,
        moment: Callable[[], None],
    ) -> None:
        self.moment = moment
        """Told when a write lands."""
        self.name = name
        self.loop = loop
        self.is_cut = False
        self.slowness = 0.0
        """Seconds that each way takes longer, at most."""
        self.lag = 0.0
        """Seconds by which the answer to a renewal comes later."""
        self.is_starved = False
        """Renewals do not get through, and all else does."""
        self.connection = 0
        """Which connection it is: what was asked on an earlier one is never answered."""
        self.features: StoreFeatures = replace(store.features, notifies=notifies)
        self._store = store
        self._network = network
        for call in _CALLS:
            setattr(self, call, partial(self._call, call, getattr(store, call)))

    @property
    def store(self) -> Store:
        """As the relay knows it."""
        return cast("Store", self)

    async def open(self) -> None:
        await self._call("open", self._store.open)

    async def close(self) -> None:
        """A process that ends does not ask."""

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
        if self.loop.is_dead:
            raise StoreUnavailable("the process is dead")
        request = Request(self, self._network, partial(method, *args, **options), name=name)
        request.send()
        return request.answer

    def mend(self) -> None:
        """As good as new."""
        self.is_cut, self.slowness = False, 0.0
        self.is_starved, self.lag = False, 0.0

    def delay(self) -> float:
        """How long one way takes."""
        seconds = self._network.delay()
        return seconds + self.slowness * self._network.dice.random() if self.slowness else seconds

    def loses(self, name: str) -> bool:
        """Whether a call gets nowhere."""
        return self.is_cut or (self.is_starved and name == "renew")

    def lag_of(self, name: str) -> float:
        """Seconds by which the answer to a call comes later than others."""
        return self.lag if name == "renew" else 0.0

    def reset(self) -> None:
        """The connection is lost, and with it where the reader stood."""
        self.connection += 1
        self._store.forget_session()

    def wakeups(self, wake: Callable[[], None]) -> _Wakeups:
        return _Wakeups(self, self._store, self._network, wake)


class _Wakeups:
    """Wakes the process some time after a commit, while the block runs and a relay has asked for it."""

    is_listening = True

    def __init__(self, line: StoreLine, store: WatchedStore, network: Network, wake: Callable[[], None]) -> None:
        self._line = line
        self._data = store.data
        self._network = network
        self._wake = wake

    def _notify(self) -> None:
        if any(relay.asleep for relay in self._data.relays.values()) and not self._network.fails():
            self._network.timeline.after(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        if not self._line.loop.is_dead and not self._line.is_cut:
            self._line.loop.call_soon(self._wake)

    async def __aenter__(self) -> _Wakeups:
        self._data.on_commit.append(self._notify)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.on_commit.remove(self._notify)
