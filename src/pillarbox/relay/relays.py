"""Relays: one process that delivers from any number of stores, each by a relay of its own.

What they have in common is bounded and divided fairly: connections, threads, transports, and messages in flight. What
goes wrong with one store stays with it: it is reported, and tried again alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.store import Store
from pillarbox.durations import shorten
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.message import check_labels
from pillarbox.redaction import redact_line
from pillarbox.relay.addresses import Found, StoreAddress, Stores, Tenants, check_store_name, parse_address
from pillarbox.relay.archive import Archive
from pillarbox.relay.relay import Destination, LoopProbe, Relay, RelayHealth, Sharing, check_arguments
from pillarbox.relay.sender import RateLimit
from pillarbox.relay.settings import DEFAULT_SETTINGS, RelaySettings, SharingSettings, check_dead_letters
from pillarbox.relay.shared_transport import SharedTransport
from pillarbox.relay.shares import Demand, Window, divide_window, sum_demands
from pillarbox.retry import Backoff
from pillarbox.stores.factory import open_store
from pillarbox.stores.sharing import SharedConnections
from pillarbox.tasks import cancel_all
from pillarbox.telemetry import LoggingTelemetry, Telemetry, in_store

__all__ = ["Relays", "StoreHealth"]

_DIVIDE_INTERVAL: Final = 0.05
"""Seconds between two divisions of the window."""
_FIRST_WINDOW: Final = Window(1, 1)
"""Share of a destination until the first division after it began. Its whole window could be more than all have."""
_WORK_LASTS: Final = 1.0
"""Seconds for which a store that had work keeps its share of the window."""
_FILE_INTERVAL: Final = 1.0
"""Seconds between two looks at whether the files of SQLite stores are still the same."""
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0
"""Seconds between two attempts to serve a store that failed."""
_DUTIES_AT_ONCE: Final = 2
"""Janitors and other duties that run at the same time: they are in no hurry, and each has a whole store to read."""
_START_STEP: Final = 0.02
"""Seconds between the starts of two stores, so that what each does at an interval is spread over it."""
_STORES_AT_FULL_PACE: Final = 50
_SLOWEST: Final = 4.0
"""Loops of an idle relay turn more slowly the more there are, down to this part of their pace."""
_RENEWALS: Final = 3
_STARTS_AT_ONCE: Final = 8
_LONGEST_START: Final = 3.0
"""Stores that start at the same time: taking lanes is more work than serving them. One that hangs gives way to others
after these seconds."""

StoreState = Literal["starting", "running", "failed", "stopping"]


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of the relay of one store, as its process sees it."""

    name: str
    address: str
    """Without secrets."""
    state: StoreState
    error: str | None = None
    """Why it is not served, until it is again."""
    failed_for: float = 0.0
    """Seconds since it was last served, or since the first attempt."""
    relay: RelayHealth | None = None


class Relays:
    """Delivers every committed message of many stores, as `Relay` does for one, until stopped.

        relays = Relays(
            {"orders": "postgresql:///shop?schema=orders", "billing": "sqlite:///billing.db"},
            {"mail": "https://mail.example/hooks"},
        )
        await relays.run()

    `stores` are URLs, or a `Stores` with tenants that come and go. All stores have the same destinations, over one
    transport each. A store that cannot be reached, or whose tables are missing or do not fit, is tried again by
    itself while the others are served. `telemetry` builds that of one store from its name.
    """

    def __init__(
        self,
        stores: Mapping[str, str | StoreAddress] | Stores,
        destinations: Mapping[str, str] | Iterable[Destination],
        *,
        settings: RelaySettings = DEFAULT_SETTINGS,
        sharing: SharingSettings | None = None,
        telemetry: Callable[[str], Telemetry] | None = None,
        archive: Archive | None = None,
        labels: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._destinations = check_arguments(destinations, settings, labels)
        if not isinstance(stores, (Mapping, Stores)):
            raise ConfigError(
                f"A {type(stores).__name__} does not name stores: pass URLs by name, such as "
                '{"orders": "postgresql:///shop"}; for a single store there is Relay.'
            )
        if not self._destinations:
            raise ConfigError("A relay needs at least one destination to deliver to.")
        check_dead_letters(destination.settings for destination in self._destinations)
        self._stores = stores if isinstance(stores, Stores) else Stores(_read_addresses(stores))
        self._settings = settings
        self._sharing = sharing or SharingSettings()
        self._telemetry = telemetry or (lambda _: LoggingTelemetry())
        self._archive = archive
        self._labels = settings.labels if labels is None else check_labels(labels)
        self._clock = clock or SystemClock()
        self._dice = random.Random()  # noqa: S311
        self._served: dict[str, _ServedStore] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._probe: LoopProbe | None = None
        self._refused: tuple[str, ...] = ()
        self._directory_error: str | None = None
        self._has_found = False

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        telemetry: Callable[[str], Telemetry] | None = None,
        archive: Archive | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Make the relays that the configuration describes, as `pillarbox relay` runs them."""
        from pillarbox.config import Config
        from pillarbox.relay.configuration import (
            list_served_destinations,
            read_relay_section,
            read_sharing_section,
            read_stores,
        )

        config = Config.load(path, environ=environ)
        return cls(
            read_stores(config),
            [one.build() for one in list_served_destinations(config)],
            settings=read_relay_section(config).settings,
            sharing=read_sharing_section(config).settings,
            telemetry=telemetry,
            archive=archive,
        )

    # --- from outside ---

    def __str__(self) -> str:
        count = len(self._stores.named)
        stores = [f"{count} store{'' if count == 1 else 's'}"] if count else []
        tenants = [] if self._stores.tenants is None else ["tenants"]
        names = ", ".join(sorted(one.settings.name for one in self._destinations))
        return f"relay of {' and '.join([*stores, *tenants])} to {names}"

    @property
    def is_started(self) -> bool:
        """True once every store that was found at the start is served, or was tried and failed."""
        return self._has_found and all(one.state != "starting" for one in self.stores)

    @property
    def health(self) -> RelayHealth:
        """Health of the process: its loop, and whether any of its stores is served. Safe to read from a thread."""
        running = [one for one in self.stores if one.state == "running" and one.relay is not None]
        return RelayHealth(
            relay_id=running[0].relay.relay_id if running and running[0].relay is not None else None,
            stopping=self._stop.is_set(),
            idle_for=0.0 if self._probe is None else self._probe.measure_block(),
            lease=self._settings.lease,
        )

    @property
    def stores(self) -> list[StoreHealth]:
        """Health of every store, by name. Safe to read from another thread."""
        return [served.health for _, served in sorted(self._served.copy().items())]

    @property
    def addresses(self) -> dict[str, StoreAddress]:
        """Addresses of the stores of this moment. Safe to read from another thread."""
        return {name: served.address for name, served in self._served.copy().items()}

    @property
    def refused(self) -> tuple[str, ...]:
        """Why rows of the tenants' directory are not served, and why it cannot be asked: a sentence each."""
        return (*self._refused, *(() if self._directory_error is None else (self._directory_error,)))

    def stop(self) -> None:
        """Finish gracefully. `run` returns when it is done."""
        self._stop.set()
        for served in self._served.values():
            served.stop()

    def wake(self, name: str) -> None:
        """Read a store now: a writer in this process has committed messages."""
        if (served := self._served.get(name)) is not None and served.relay is not None:
            served.relay.wake()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    # --- running ---

    async def run(self, *, once: bool = False) -> None:
        """Deliver until stopped, or with `once` until nothing is left in any store that could be delivered now.

        With `once` each store is tried once, and `stores` tells which could not be served. Raises nothing for a
        store, and nothing for tenants that cannot be asked for, unless there is no other store: a wrong URL of the
        directory is likelier at the start.
        """
        self._probe = LoopProbe(asyncio.get_running_loop(), clock=self._clock)
        shared = SharedConnections(connections=self._sharing.store_connections, threads=self._sharing.store_threads)
        self._shared = shared
        self._duty_slots = asyncio.Semaphore(_DUTIES_AT_ONCE)
        self._start_slots = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._rates = {
            one.settings.name: RateLimit(one.settings.rate) for one in self._destinations if one.settings.rate
        }
        self._transports = {one.settings.name: SharedTransport(one.transport) for one in self._destinations}
        try:
            found = await self._find_stores(is_first=True)
            self._follow(found, once=once)
            self._has_found = True
            loops = [self._divide_windows(), self._watch_files()]
            if self._stores.tenants is not None and not once:
                loops.append(self._follow_tenants(self._stores.tenants))
            tasks = [asyncio.create_task(loop) for loop in loops]
            try:
                if once:
                    await asyncio.gather(*self._tasks.values())
                else:
                    await self._wait_for_stop(tasks)
            finally:
                await self._end(tasks)
        finally:
            shared.close()

    async def _wait_for_stop(self, loops: list[asyncio.Task[None]]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({stopped, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()
        finally:
            stopped.cancel()

    async def _end(self, loops: list[asyncio.Task[None]]) -> None:
        """Stop every store at once, and wait until each has finished what is under way."""
        self.stop()
        try:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        finally:
            await cancel_all([*loops, *self._tasks.values()])

    # --- stores that come and go ---

    async def _find_stores(self, *, is_first: bool = False) -> Found:
        """Return the stores of now. Where the directory does not answer, those that were known stay."""
        try:
            found = await self._stores.find()
        except PillarboxError as error:
            if is_first and not self._stores.named:
                raise
            self._note_directory(redact_line(str(error)))
            known = {name: served.address for name, served in self._served.items()}
            return Found({**self._stores.named, **known}, self._refused)
        self._note_directory(None)
        return found

    def _note_directory(self, error: str | None) -> None:
        if error is not None and error != self._directory_error:
            self._telemetry("").on_directory_failed(error)
        self._directory_error = error

    def _follow(self, found: Found, *, once: bool = False) -> None:
        """Serve the stores that are new, and stop serving those that are gone."""
        for sentence in found.refused:
            if sentence not in self._refused:
                self._telemetry("").on_directory_failed(sentence)
        self._refused = tuple(found.refused)
        new = [name for name in found.stores if name not in self._served]
        pace = self._compute_pace(len(found.stores))
        spread = min(_START_STEP, self._settings.lease.total_seconds() / _RENEWALS / max(1, len(new)))
        for place, name in enumerate(new):
            served = _ServedStore(
                name, found.stores[name], self._build_relay, dice=self._dice, pace=pace, start_slots=self._start_slots
            )
            self._served[name] = served
            self._tasks[name] = asyncio.create_task(
                served.run(once=once, delay=0.0 if once else place * spread), name=f"store {name}"
            )
        for name in self._served.keys() - found.stores.keys():
            self._served[name].stop()
            self._tasks[name].add_done_callback(partial(self._forget, name))
        for name, address in found.stores.items():
            if name in self._served and self._served[name].address != address:
                self._served[name].move(address)

    def _forget(self, name: str, _task: asyncio.Task[None]) -> None:
        self._served.pop(name, None)
        self._tasks.pop(name, None)

    async def _follow_tenants(self, tenants: Tenants) -> None:
        while True:
            await asyncio.sleep(tenants.refresh.total_seconds() * (0.9 + self._dice.random() / 5))
            self._follow(await self._find_stores())

    def _compute_pace(self, count: int) -> float:
        """Return how many times slower idle loops turn. They must still turn several times in a lease."""
        lease = self._settings.lease.total_seconds()
        longest = max(1.0, lease / 4 / self._settings.watch_interval.total_seconds())
        return min(max(1.0, count / _STORES_AT_FULL_PACE), _SLOWEST, longest)

    def _build_relay(self, name: str, address: StoreAddress, pace: float) -> Relay:
        store: Store = open_store(address.url, names=address.names, shared=self._shared)
        settings = self._settings
        retention = settings.retention
        if retention.archive is not None:  # files of two stores must not mix
            retention = msgspec.structs.replace(retention, archive=os.path.join(retention.archive, name))
        settings = msgspec.structs.replace(
            settings,
            retention=retention,
            watch_interval=settings.watch_interval * pace,
            poll_interval=settings.poll_interval * pace,
        )
        destinations = [
            Destination(self._transports[one.settings.name].share, one.settings, one.transport)
            for one in self._destinations
        ]
        return Relay(
            store,
            destinations,
            settings=settings,
            clock=self._clock,
            telemetry=self._telemetry(name),
            archive=self._archive,
            labels=self._labels,
            sharing=Sharing(pace=pace, rates=self._rates, duty_slots=self._duty_slots, first_window=_FIRST_WINDOW),
        )

    # --- loops over all stores ---

    async def _divide_windows(self) -> None:
        """Give each store its share of the messages in flight, and each of its destinations a share of that."""
        window = Window(self._sharing.total_window, self._sharing.total_window_bytes)
        while True:
            # Those that are starting or away count too: what is kept for them is there when they come.
            demands = {name: served.measure_demand() for name, served in self._served.items()}
            shares = divide_window(window, {name: sum_demands(own) for name, own in demands.items()})
            for name, own in demands.items():
                relay = self._served[name].relay
                if relay is not None and own:
                    relay.resize(divide_window(shares[name], own))
            await asyncio.sleep(_DIVIDE_INTERVAL)

    async def _watch_files(self) -> None:
        """Start a store anew whose SQLite file was removed or replaced: an open connection would not notice."""
        while True:
            await asyncio.sleep(_FILE_INTERVAL)
            for served in list(self._served.values()):
                served.check_file()


def _read_addresses(stores: Mapping[str, str | StoreAddress]) -> dict[str, StoreAddress]:
    if not stores:
        raise ConfigError("Relays need at least one store.")
    for name, one in stores.items():
        if not isinstance(one, (str, StoreAddress)):
            raise ConfigError(f"The store {name} is {shorten(one)}, which is no address: pass its URL.")
    return {check_store_name(name): parse_address(one) if isinstance(one, str) else one for name, one in stores.items()}


class _ServedStore:
    """The relay of one store, started again alone whenever it ends with an error."""

    def __init__(
        self,
        name: str,
        address: StoreAddress,
        build: Callable[[str, StoreAddress, float], Relay],
        *,
        dice: random.Random,
        pace: float,
        start_slots: asyncio.Semaphore,
    ) -> None:
        self.name = name
        self._start_slots = start_slots
        self.address = address
        self._build = build
        self._dice = dice
        self._pace = pace
        self._stop = asyncio.Event()
        self.relay: Relay | None = None
        self._error: str | None = None
        self._served_at = time.monotonic()
        self._file: object = None
        self._must_restart = False
        self._wanted_at: dict[str, float] = {}
        """When each destination last had work."""

    @property
    def health(self) -> StoreHealth:
        relay = self.relay
        health = None if relay is None else relay.health
        is_running = health is not None and health.relay_id is not None
        if is_running:
            self._served_at, self._error = time.monotonic(), None
        state: StoreState = (
            "stopping" if self._stop.is_set() else "running" if is_running else "failed" if self._error else "starting"
        )
        return StoreHealth(
            name=self.name, address=str(self.address), state=state, error=self._error, relay=health,
            failed_for=0.0 if is_running else time.monotonic() - self._served_at,
        )  # fmt: skip

    def measure_demand(self) -> Mapping[str, Demand]:
        """Return what each destination has in flight, and whether it had work a moment ago.

        Between settling one batch and reading the next it has nothing in flight. If its share went to others then, a
        store with a flood would take it again and again.
        """
        if self.relay is None:
            return {}
        now, demands = time.monotonic(), dict(self.relay.measure_demand())
        for name, demand in demands.items():
            if demand.wants:
                self._wanted_at[name] = now
            elif now - self._wanted_at.get(name, -_LONGEST_WAIT) < _WORK_LASTS:
                demands[name] = demand._replace(wants=True)
        return demands

    def stop(self) -> None:
        self._stop.set()
        if self.relay is not None:
            self.relay.stop()

    def move(self, address: StoreAddress) -> None:
        """Serve the store at another address from now on."""
        self.address = address
        self._restart()

    def _restart(self) -> None:
        self._must_restart = True
        if self.relay is not None:
            self.relay.stop()

    def check_file(self) -> None:
        """Start anew if the file of an SQLite store is not the one that was opened."""
        if self.relay is not None and self._file is not None and self._file != _identify_file(self.address):
            self._restart()

    async def run(self, *, once: bool, delay: float) -> None:
        """Serve the store until stopped; with `once`, or when it is stopped, return after one attempt."""
        with in_store(self.name):
            await self._wait(delay)
            backoff = self._build_backoff()
            while not self._stop.is_set():
                began_at = time.monotonic()
                error = await self._run_relay(once=once)
                if once:
                    return
                if error is None and not self._must_restart:
                    return  # it was stopped
                if time.monotonic() - began_at > _LONGEST_WAIT:
                    backoff = self._build_backoff()
                self._must_restart = False
                await self._wait(backoff.next_wait())

    async def _run_relay(self, *, once: bool) -> Exception | None:
        telemetry: Telemetry = LoggingTelemetry()
        self._file = _identify_file(self.address)
        try:
            relay = self._build(self.name, self.address, self._pace)
            telemetry = relay.telemetry
            self.relay = relay
            if self._stop.is_set():
                return None
            async with self._start_slots:
                running = asyncio.create_task(relay.run(once=once))
                await self._wait_for_start(relay, running)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise
            self._error = None
        except Exception as error:  # whatever it is, it is this store's alone
            reason = redact_line(str(error)) or type(error).__name__
            if reason != self._error:
                telemetry.on_store_failed(f"serving the store {self.name}", error)
            self._error = reason
            return error
        finally:
            self.relay = None
        return None

    async def _wait_for_start(self, relay: Relay, running: asyncio.Task[None]) -> None:
        """Wait until the relay owns lanes, has ended, or has taken its time."""
        until = time.monotonic() + _LONGEST_START
        # Its pipelines are built anew with each lease, so there is no one event to wait for.
        while not running.done() and not relay.owns_lanes and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_START_STEP)

    def _build_backoff(self) -> Backoff:
        return Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=self._dice)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


def _identify_file(address: StoreAddress) -> object:
    """Return what tells the file of an SQLite store from another at the same place; None for other stores."""
    if address.url.scheme != "sqlite":
        return None
    try:
        found = os.stat(address.url.path)
    except OSError:
        return "missing"
    return found.st_dev, found.st_ino
