"""Relay: builds the pipelines of its destinations, and runs them beside membership and duties."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import msgspec

from pillarbox.arguments import check_argument
from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.store import PartitionedStore, RelayInfo, Store, Wakeups
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures, find_addressing
from pillarbox.durations import LONGEST, shorten
from pillarbox.errors import (
    ConfigError,
    PillarboxError,
    SchemaError,
    StoreBusy,
    StoreError,
    StoreForbidden,
    StoreUnavailable,
)
from pillarbox.message import SKIPPED_DESTINATION, Message, check_labels
from pillarbox.relay.archive import Archive
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.journal import RelayJournal
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Heartbeat, LeaseLost, Rebalancer
from pillarbox.relay.outcome_policy import OutcomePolicy, SkipPolicy
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.polling import PollBackoff, SharedPoll, WakeupArming
from pillarbox.relay.schema_watch import SchemaWatch
from pillarbox.relay.sender import RateLimit
from pillarbox.relay.settings import DEFAULT_SETTINGS, DestinationSettings, Duty, RelaySettings, check_dead_letters
from pillarbox.relay.shares import Demand, Window
from pillarbox.retry import Backoff
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import parse_store_url
from pillarbox.tasks import cancel_all, check_cancelled
from pillarbox.telemetry import CompositeTelemetry, LoggingTelemetry, Telemetry

__all__ = ["Destination", "LoopProbe", "Relay", "RelayHealth", "Sharing", "check_arguments"]

_IDLE_INTERVAL: Final = 0.02
_REPORT_INTERVAL: Final = 5.0
"""Seconds between two moments at which the telemetry may report what it added up."""
_WOKEN_SINGLY: Final = 8
"""Up to so many resting destinations each read at once when a writer commits: a look before would cost more."""
_FIRST_WAIT: Final = 0.05
_BACKLOG_INTERVAL: Final = 10.0
"""Seconds between two counts of what is due."""
_BACKLOG_LIMIT: Final = 10_000
"""Messages of a destination after which counting ends."""
_CLEANING: Final = "cleaning"
_FORGETTING: Final = "forgetting dead relays"
_EXTENDING: Final = "extending history"
_EXTEND_EVERY: Final = 60.0
"""Seconds between two looks at whether history has partitions ahead, for millions of ids."""
_LONGEST_WAIT: Final = 2.0
"""Seconds between two attempts to connect or to register."""


class Destination(msgspec.Struct, frozen=True):
    """Destination to serve: a factory of its transport, and its settings.

    `transport` is called once when the relay starts, and again for each connection on which suspects are sent, unless
    `suspect_transport` is there for these.
    """

    transport: Callable[[], Transport]
    settings: DestinationSettings = DestinationSettings()
    suspect_transport: Callable[[], Transport] | None = None

    def __post_init__(self) -> None:
        check_argument(self.settings, "settings", DestinationSettings)
        for given in (self.transport, self.suspect_transport):
            if given is not None and not callable(given):
                # Its text is not repeated: a URL may hold a password.
                raise ConfigError(
                    f"A {type(given).__name__} does not build the transport of the destination {self.settings.name}: "
                    "pass a function without arguments that returns one, or pass URLs by name instead of Destination."
                )


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that the relays of several stores in one process have in common."""

    pace: float = 1.0
    """How many times slower the loops of an idle relay turn."""
    rates: Mapping[str, RateLimit] = {}
    """Limits of messages per second, by destination."""
    duty_slots: asyncio.Semaphore | None = None
    """As many duties run at once. None: each as it comes."""
    first_window: Window | None = None
    """Window of each destination until `resize` gives it its share. None: that of its settings, for good."""


_ALONE: Final = Sharing()


class RelayHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of a relay as its own process sees it."""

    relay_id: UUID | None
    """None: it has not entered the registry yet."""
    stopping: bool
    idle_for: float
    """Seconds for which its event loop has been blocked. Waiting for a store does not block it."""
    lease: timedelta
    optional: frozenset[str] = frozenset()
    """Destinations that it may be cut off from and still be ready."""


def check_arguments(destinations: object, settings: object, labels: object) -> list[Destination]:
    """Return the destinations; raise `ConfigError` for what is none, and for other settings or labels."""
    if isinstance(destinations, Mapping):
        from pillarbox.relay.configuration import destination_from_url

        destinations = [destination_from_url(name, url) for name, url in destinations.items()]
    given = list(destinations) if isinstance(destinations, Iterable) else [destinations]
    listed = [one for one in given if isinstance(one, Destination)]
    if len(listed) < len(given):
        raise ConfigError(
            f"destinations={shorten(destinations)} are not destinations: pass URLs by name, such as "
            '{"billing": "amqp://localhost"}, or a list of Destination.'
        )
    check_argument(settings, "settings", RelaySettings)
    check_argument(labels, "labels", Mapping[str, str] | None)
    if isinstance(settings, RelaySettings) and settings.lease > LONGEST:
        raise ConfigError("The lease of a relay cannot be forever: lanes of one that died would stay with it.")
    return listed


def _describe_store(store: Store | str) -> str:
    """Return the address of a store without secrets; the class of one from another package that tells none."""
    if isinstance(store, str):
        return str(parse_store_url(store))
    return type(store).__name__ if type(store).__str__ is object.__str__ else str(store)


class Relay:
    """Delivers every committed message of a store, in order per key, until stopped.

    Run any number of them on one store: they share the lanes evenly, and take over what a dead one leaves. `run()`
    returns after `stop()`, when everything under way has finished and is recorded. As an async context manager it runs
    in the background of its block.

        relay = Relay("postgresql:///shop", {"billing": "amqp://localhost", "mail": "https://mail.example/hooks"})
        await relay.run()

    `store` is a URL or a `Store`. `destinations` are URLs by name, or `Destination` objects. In a URL `${NAME}` stands
    for an environment variable. `labels` are shown in the registry, in place of those of the settings.
    """

    def __init__(
        self,
        store: Store | str,
        destinations: Mapping[str, str] | Iterable[Destination],
        *,
        settings: RelaySettings = DEFAULT_SETTINGS,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        archive: Archive | None = None,
        labels: Mapping[str, str] | None = None,
        seed: int | None = None,
        sharing: Sharing = _ALONE,
    ) -> None:
        destinations = check_arguments(destinations, settings, labels)
        if not isinstance(store, str) and not hasattr(store, "registry"):
            raise ConfigError(f"store={shorten(store)} is not a store: pass a URL, or what open_store returns.")
        self._store = open_store(store) if isinstance(store, str) else store
        self._origin = _describe_store(store)
        """Where it delivers from, without secrets."""
        self._destinations = {destination.settings.name: destination for destination in destinations}
        if not self._destinations:
            raise ConfigError("A relay needs at least one destination to deliver to.")
        check_dead_letters(destination.settings for destination in self._destinations.values())
        self._settings = settings
        self._labels = settings.labels if labels is None else check_labels(labels)
        self._clock = clock or SystemClock()
        telemetry = telemetry or LoggingTelemetry()
        self._schema_watch = SchemaWatch(self._store, interval=settings.lease.total_seconds(), telemetry=telemetry)
        self._telemetry = CompositeTelemetry(telemetry, self._schema_watch)
        self._archive = archive
        self._sharing = sharing
        self._dice = random.Random(seed)  # noqa: S311
        self._stop = asyncio.Event()
        self._once = False
        self._duties_begun: set[str] = set()
        self._duties_done = asyncio.Event()
        """Each of the duties ran once."""
        self._task: asyncio.Task[None] | None = None
        self._pipelines: dict[str, Pipeline] = {}
        self._optional: frozenset[str] = frozenset()
        """Destinations that do not count for readiness."""
        self._arming: WakeupArming | None = None
        self._journal: RelayJournal | None = None
        self._poll: SharedPoll | None = None
        self.relay_id: str | None = None
        self._is_registered = False
        self._was_registered = False
        self._probe: LoopProbe | None = None

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        archive: Archive | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Make the relay that the configuration describes, as `pillarbox relay` runs it.

        `path` is found as `Config.load` finds it. Raises `ConfigError` where something is missing or wrong.
        """
        from pillarbox.config import Config
        from pillarbox.relay.configuration import (
            list_served_destinations,
            read_relay_section,
            read_store,
            read_stores,
        )

        config = Config.load(path, environ=environ)
        settings = read_relay_section(config).settings
        destinations = [one.build() for one in list_served_destinations(config)]
        url, names = read_store(config)
        stores = read_stores(config)
        (name,) = stores.named
        folder = stores.choose_archive(settings.retention.archive, name)
        retention = msgspec.structs.replace(settings.retention, archive=folder)
        settings = msgspec.structs.replace(settings, retention=retention)
        return cls(
            open_store(url, names=names), destinations, settings=settings, clock=clock, telemetry=telemetry,
            archive=archive,
        )  # fmt: skip

    # --- from outside ---

    def __str__(self) -> str:
        return f"relay from {self._origin} to {', '.join(sorted(self._destinations))}"

    @property
    def is_started(self) -> bool:
        """True once it was in the registry: its store was reached, and the tables fit."""
        return self._was_registered

    @property
    def telemetry(self) -> Telemetry:
        return self._telemetry

    @property
    def health(self) -> RelayHealth:
        """Its health as this process sees it; the tables hold the rest. Safe to read from another thread."""
        relay_id, probe = self.relay_id, self._probe
        return RelayHealth(
            relay_id=UUID(relay_id) if relay_id is not None and self._is_registered else None,
            stopping=self._stop.is_set(),
            idle_for=0.0 if probe is None else probe.measure_block(),
            lease=self._settings.lease,
            optional=self._optional,
        )

    @property
    def owns_lanes(self) -> bool:
        """True once it has taken lanes of any destination."""
        return any(pipeline.lanes for pipeline in self._pipelines.values())

    def measure_demand(self) -> Mapping[str, Demand]:
        """Return what each destination has in flight, and whether it would take more."""
        return {name: pipeline.measure_demand() for name, pipeline in self._pipelines.items()}

    def resize(self, windows: Mapping[str, Window]) -> None:
        """Change the windows of destinations to their shares of what several stores have together."""
        for name, window in windows.items():
            if (pipeline := self._pipelines.get(name)) is not None:
                pipeline.state.resize(window=window.messages, window_bytes=window.bytes)

    def stop(self) -> None:
        """Finish gracefully. `run` returns when it is done."""
        self._stop.set()

    def wake(self) -> None:
        """Read now: a writer in this process has committed messages."""
        self._wake_readers(Pipeline.wake)

    def _wake_readers(self, wake: Callable[[Pipeline], None]) -> None:
        """Have every destination read now, those that rest by the shared poll if they are many."""
        resting = sum(pipeline.reader.is_resting for pipeline in self._pipelines.values())
        for pipeline in self._pipelines.values():
            if resting <= _WOKEN_SINGLY or not pipeline.reader.is_resting:
                wake(pipeline)
        if resting > _WOKEN_SINGLY and self._poll is not None:
            self._poll.wake()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    async def run(self, *, once: bool = False) -> None:
        """Deliver until stopped, or with `once` until nothing is left that could be delivered now.

        A relay that does not deliver runs each of its duties once.

        When the lease is lost, everything is dropped and the relay starts again under a new id.

        At the start it raises what a person must fix: a store that cannot be reached, tables that do not fit, a
        missing right. Once it was in the registry, whatever the store refuses is waited for, with `once` for a lease,
        except tables that were upgraded or downgraded to a version that this release may not use.
        """
        self._once = once
        self._probe = LoopProbe(asyncio.get_running_loop(), clock=self._clock)
        if not await self._open_store():
            return
        try:
            while not self._stop.is_set():
                try:
                    await self._run_lease()
                except LeaseLost as error:
                    self._telemetry.on_lease_lost(reason=str(error))
        finally:
            self._telemetry.on_turn(is_last=True)
            await self._store.close()

    # --- one lease ---

    async def _run_lease(self) -> None:
        self._is_registered = False
        lease = Lease(duration=self._settings.lease)
        self.relay_id = str(lease.relay_id)
        journal = self._journal = RelayJournal(self._store, lease.relay_id, telemetry=self._telemetry)
        self._pipelines = self._build_pipelines(lease)
        rebalancer = Rebalancer(
            self._store,
            lease,
            self._pipelines,
            settings=self._settings,
            clock=self._clock,
            telemetry=self._telemetry,
            note=journal.add,
            dice=self._dice,
        )
        heartbeat = Heartbeat(
            self._store,
            lease,
            settings=self._settings,
            clock=self._clock,
            telemetry=self._telemetry,
            reachable=self._find_reachable,
            progress=lambda: min(
                [rebalancer.progress.last_turn, *(p.progress.last_turn for p in self._pipelines.values())]
            ),
            dice=self._dice,
        )
        if not await self._register(heartbeat, lease):
            return
        self._is_registered = True
        self._telemetry.on_started(str(self), relay_id=self.relay_id)
        async with self._store.wakeups(self._on_notification) as wakeups:
            services: list[Coroutine[Any, Any, None]] = [heartbeat.run(), rebalancer.run(), *self._build_duties()]
            services += [journal.run(), self._count_backlogs(lease), self._schema_watch.run(), self._report_turns()]
            services += [pipeline.run() for pipeline in self._pipelines.values()]
            self._poll = SharedPoll(
                {name: pipeline.reader for name, pipeline in self._pipelines.items()},
                store=self._store,
                poll_interval=self._settings.poll_interval,
                telemetry=self._telemetry,
            )
            services.append(self._poll.run())
            if self._store.features.notifies:
                self._arming = self._build_arming(heartbeat, wakeups)
                services.append(self._arming.run())
            if self._once:
                services.append(self._stop_when_idle(rebalancer))
            await self._run_services(services, lease)

    async def _open_store(self) -> bool:
        """Connect, however long the store is busy, with `once` for a lease; return False if stopped meanwhile."""
        backoff, until = self._build_backoff(), self._clock.monotonic() + self._settings.lease.total_seconds()
        while not self._stop.is_set():
            try:
                await self._store.open()
                return True
            except StoreBusy as error:
                if self._once and self._clock.monotonic() >= until:
                    raise
                self._telemetry.on_store_failed("connecting", error)
                await self._wait_for_stop(backoff.next_wait())
        return False

    async def _register(self, heartbeat: Heartbeat, lease: Lease) -> bool:
        """Enter the registry, however long the store is away or refuses; return False if stopped meanwhile.

        Only what a person must fix before the first start ends the relay: tables that do not fit, a missing right.
        With `once`, whatever lasts for a lease ends it.
        """
        names = list(self._pipelines)
        info = RelayInfo(
            relay_id=lease.relay_id,
            service=self._settings.service,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("pillarbox"),
            destinations=names,
            reachable=names,
            labels=self._labels,
        )
        backoff, until = self._build_backoff(), self._clock.monotonic() + self._settings.lease.total_seconds()
        while not self._stop.is_set():
            try:
                await heartbeat.register(info)
            except PillarboxError as error:
                if not self._was_registered and isinstance(error, SchemaError | StoreForbidden):
                    raise
                if self._once and self._clock.monotonic() >= until:
                    raise
                self._telemetry.on_store_failed("registering", error)
                self._telemetry.on_turn()
                await self._schema_watch.run_once()
                await self._wait_for_stop(backoff.next_wait())
            else:
                self._was_registered = True
                return True
        return False

    def _build_backoff(self) -> Backoff:
        first = min(_FIRST_WAIT, self._settings.poll_interval.total_seconds())
        return Backoff(first=first, longest=_LONGEST_WAIT, dice=self._dice)

    async def _wait_for_stop(self, seconds: float) -> None:
        """Wait, and no longer than until the relay is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _run_services(self, services: Sequence[Coroutine[Any, Any, None]], lease: Lease) -> None:
        """Run all until the relay is stopped, or one of them raises."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(service) for service in services]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await self._finish(lease)
        finally:
            await cancel_all([*tasks, stopped])

    async def _finish(self, lease: Lease) -> None:
        """Stop claiming, let the windows finish, record everything, leave the registry.

        Without a lease nothing can be recorded: a store that does not answer is waited for no longer than that.
        """
        leaving = asyncio.create_task(self._leave(lease))
        try:
            while not leaving.done() and lease.may_act(self._clock.monotonic()):
                await asyncio.wait({leaving}, timeout=_IDLE_INTERVAL)
            if leaving.done():
                leaving.result()
        finally:
            await cancel_all([leaving])

    async def _leave(self, lease: Lease) -> None:
        is_behind = any(pipeline.reader.is_behind for pipeline in self._pipelines.values())
        await asyncio.gather(
            *(
                pipeline.drain(within=pipeline.state.settings.send_timeout.total_seconds())
                for pipeline in self._pipelines.values()
            )
        )
        if is_behind:
            await self._mark_lanes(lease)
        for pipeline in self._pipelines.values():
            pipeline.state.end_outage()
        if self._journal is not None:
            await self._journal.run_once()
        await self._leave_registry(lease)

    async def _mark_lanes(self, lease: Lease) -> None:
        """Note how far the lanes are done with: whoever takes them over need not walk through what was delivered."""
        try:
            for _ in range(2):  # what was read last is marked once the transactions of that time have ended
                await self._store.mark_lanes(lease.relay_id)
        except StoreError as error:
            self._telemetry.on_store_failed("marking lanes", error)

    async def _leave_registry(self, lease: Lease) -> None:
        """Give every lane up, so that nobody has to wait for the end of the lease.

        A store that is busy, or whose connection broke, is asked again, for no longer than the lease would last.
        """
        until = self._clock.monotonic() + lease.duration
        backoff = self._build_backoff()
        while True:
            try:
                await self._store.leave(lease.relay_id)
                return
            except StoreError as error:
                self._telemetry.on_store_failed("leaving", error)
                if not isinstance(error, StoreUnavailable) or self._clock.monotonic() >= until:
                    return
            await asyncio.sleep(backoff.next_wait())

    async def _stop_when_idle(self, rebalancer: Rebalancer) -> None:
        """Stop once there is nothing to do; raise why, if that cannot be known for a lease."""
        if not self._pipelines:
            await self._duties_done.wait()
        while not all(pipeline.is_idle for pipeline in self._pipelines.values()):
            await asyncio.sleep(_IDLE_INTERVAL)
            states = [pipeline.state for pipeline in self._pipelines.values()]
            watched = [
                rebalancer.failures,
                *(failures for one in states for failures in (one.failed_reads, one.failed_writes)),
            ]
            for failures in watched:
                failures.check(within=self._settings.lease.total_seconds())
        self.stop()
        await asyncio.Event().wait()  # a service that ends would end the others before they are drained

    def _on_notification(self) -> None:
        self.wake()
        if self._arming is not None:
            self._arming.on_notification()

    def _build_arming(self, heartbeat: Heartbeat, wakeups: Wakeups) -> WakeupArming:
        async def publish() -> None:
            heartbeat.is_asleep = arming.is_armed
            await heartbeat.run_once()

        def poll() -> None:
            self._wake_readers(Pipeline.poll)

        backoffs = [pipeline.backoff for pipeline in self._pipelines.values()]
        arming = WakeupArming(backoffs, wakeups=wakeups, publish=publish, poll=poll, pace=self._sharing.pace)
        return arming

    def _build_pipelines(self, lease: Lease) -> dict[str, Pipeline]:
        if not self._settings.owns_lanes:
            return {}
        skipped = Destination(SkipTransport, DestinationSettings(name=SKIPPED_DESTINATION))
        return {
            name: self._build_pipeline(destination, lease)
            for name, destination in {**self._destinations, SKIPPED_DESTINATION: skipped}.items()
        }

    def _build_pipeline(self, destination: Destination, lease: Lease) -> Pipeline:
        settings, transport = destination.settings, destination.transport()
        policy_class = SkipPolicy if settings.name == SKIPPED_DESTINATION else OutcomePolicy
        state = DestinationState(
            settings,
            store=self._store,
            lease=lease,
            policy=policy_class(
                retry=settings.retry,
                after_failure=settings.after_failure,
                dead_letter=settings.dead_letter,
                missing_topology=settings.missing_topology,
                give_up_after=settings.give_up_after,
                has_addresses=find_addressing(transport) is not None,
                in_process=transport.features.in_process,
            ),
            clock=self._clock,
            telemetry=self._telemetry,
            dice=self._dice,
            has_runs=transport.features.runs,
            note=None if self._journal is None else self._journal.add,
        )
        if (first := self._sharing.first_window) is not None:
            state.resize(window=first.messages, window_bytes=first.bytes)
        counts = transport.features.readiness if settings.readiness is None else settings.readiness
        self._optional = self._optional - {settings.name} if counts else self._optional | {settings.name}
        return Pipeline(
            state,
            transport=transport,
            open_transport=destination.suspect_transport or destination.transport,
            backoff=PollBackoff(poll_interval=self._settings.poll_interval),
            settings=self._settings,
            rate=self._sharing.rates.get(settings.name),
            pace=self._sharing.pace,
        )

    def _find_reachable(self) -> list[str]:
        return [name for name, pipeline in self._pipelines.items() if pipeline.is_reachable]

    # --- duties ---

    def _build_duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = []
        settings = self._settings
        self._duties_begun = {
            what for duty, what in ((Duty.CLEAN, _CLEANING), (Duty.RECOVER, _FORGETTING)) if duty in settings.duties
        }
        if Duty.CLEAN in settings.duties:
            janitor = Janitor(
                self._store, retention=settings.retention, telemetry=self._telemetry, archive=self._archive
            )
            duties.append(self._repeat(_CLEANING, janitor.run_once, settings.retention.every.total_seconds()))
            if isinstance(self._store, PartitionedStore):
                duties.append(self._repeat(_EXTENDING, self._store.extend_history, _EXTEND_EVERY))
        if Duty.RECOVER in settings.duties:
            every = settings.lease.total_seconds()
            duties.append(self._repeat(_FORGETTING, self._forget_relays, every))
        return duties

    async def _repeat(self, what: str, once: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Run a duty again and again. If it fails, for example in the user's own archive, delivery goes on."""
        while True:
            check_cancelled()
            try:
                async with self._sharing.duty_slots or contextlib.nullcontext():
                    await once()
            except Exception as error:
                self._telemetry.on_duty_failed(what, error)
            self._duties_begun.discard(what)
            if not self._duties_begun:
                self._duties_done.set()
            # Spread, so that relays which started together do not all do it at the same moment.
            await asyncio.sleep(seconds * (0.9 + self._dice.random() / 5))

    async def _report_turns(self) -> None:
        """Let the telemetry report what it added up, now and then and when the relay ends."""
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            self._telemetry.on_turn()

    async def _count_backlogs(self, lease: Lease) -> None:
        """Have the store count what is due, one statement for all destinations whose first lane is this relay's.

        So one relay counts each destination. Nobody waits for it, and a count that fails is left out.
        """
        while True:
            await asyncio.sleep(_BACKLOG_INTERVAL * (0.9 + self._dice.random() / 10))
            names = [
                name
                for name, pipeline in self._pipelines.items()
                if 0 in pipeline.state.epochs and name != SKIPPED_DESTINATION
            ]
            try:
                if names:
                    await self._store.record_backlog(lease.relay_id, destinations=names, limit=_BACKLOG_LIMIT)
            except StoreError as error:
                self._telemetry.on_store_failed("counting the backlog", error)

    async def _forget_relays(self) -> None:
        await self._store.forget(stale_after=self._settings.stale_after)
        if self.relay_id is not None:
            await self._store.mark_lanes(UUID(self.relay_id))


class SkipTransport:
    """Transport of the reserved destination for messages that no route matched. It sends nothing."""

    features: Final = TransportFeatures(name="skipping")

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [Outcome(True)] * len(messages)


class LoopProbe:
    """Measures for how long an event loop has been blocked, from any thread.

    A loop that only waits, for example for a database that is away, is not blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Clock) -> None:
        self._loop: Final = loop
        self._clock: Final = clock
        self._scheduled_at: float | None = None

    def measure_block(self) -> float:
        """Return the seconds since a callback was scheduled that has not run yet; 0 if the loop runs, or has ended."""
        if (scheduled_at := self._scheduled_at) is not None:
            return max(self._clock.monotonic() - scheduled_at, 0.0)
        self._scheduled_at = self._clock.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._on_turn)
        except RuntimeError:
            self._scheduled_at = None
        return 0.0

    def _on_turn(self) -> None:
        self._scheduled_at = None
