"""The line between a process and the store: slow, cut, and silent about what became of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

from msgspec.structs import replace

from pillarbox.errors import StoreUnavailable
from pillarbox.protocols import Store, StoreFeatures
from simulation.loop import ProcessLoop
from simulation.request import Network, Request
from simulation.store import WatchedStore

__all__ = ["StoreLine"]

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
        self._data.wakes.append(self._notify)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.wakes.remove(self._notify)
