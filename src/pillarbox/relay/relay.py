"""The relay: membership, pipelines and duties, assembled and run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.errors import ConfigError, StoreError, StoreUnavailable
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.protocols import RelayInfo, Selection, Store, Transport, Wakeups
from pillarbox.relay.janitor import Archive, Janitor
from pillarbox.relay.judging import Judge
from pillarbox.relay.membership import Heartbeat, LeaseLost, Watch
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import DEFAULT_SETTINGS, DestinationSettings, Duty, RelaySettings
from pillarbox.relay.skipping import SkippingJudge, SkippingTransport
from pillarbox.relay.standing import Standing
from pillarbox.relay.turning import Turning
from pillarbox.relay.wake import Drowsing, Sleeper
from pillarbox.relay.work import Work
from pillarbox.telemetry import LoggingTelemetry, Telemetry

__all__ = ["Destination", "Pulse", "Relay"]

_FORWARD_INTERVAL: Final = 1.0
_FORWARD_BATCH: Final = 500
_IDLE_LOOK: Final = 0.02


class Destination(msgspec.Struct, frozen=True):
    """Where messages go: a way to make its transport, and how it is served.

    `transport` is called once when the relay starts, and once more for each message that must go alone.
    """

    transport: Callable[[], Transport]
    settings: DestinationSettings = DestinationSettings()


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """A relay's word on itself."""

    relay_id: UUID | None
    """None: it has not entered the registry yet."""
    stopping: bool
    idle_for: float
    """Seconds for which its loop has not turned though it was asked to. Waiting for a store is no such thing."""
    lease: timedelta


class Relay:
    """Delivers every committed message of a store, in order per key, until stopped.

    Run any number of them on one store: they share the lanes evenly, and take over what a dead one leaves. `run()`
    returns after `stop()`, when everything under way has finished and is recorded. As an async context manager it runs
    in the background of its block.
    """

    def __init__(
        self,
        store: Store,
        destinations: Iterable[Destination],
        *,
        settings: RelaySettings = DEFAULT_SETTINGS,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        archive: Archive | None = None,
        seed: int | None = None,
    ) -> None:
        self._store = store
        self._destinations = {destination.settings.name: destination for destination in destinations}
        if not self._destinations:
            raise ConfigError("A relay needs at least one destination to deliver to.")
        self._settings = settings
        self._clock = clock or SystemClock()
        self._telemetry = telemetry or LoggingTelemetry()
        self._archive = archive
        self._dice = random.Random(seed)  # noqa: S311
        self._stop = asyncio.Event()
        self._once = False
        self._task: asyncio.Task[None] | None = None
        self._pipelines: dict[str, Pipeline] = {}
        self._drowsing: Drowsing | None = None
        self.relay_id: str | None = None
        self._is_registered = False
        self._turning: Turning | None = None

    # --- from outside ---

    @property
    def pulse(self) -> Pulse:
        """How the process itself sees it. The tables say the rest. Safe to ask from another thread."""
        relay_id, turning = self.relay_id, self._turning
        return Pulse(
            relay_id=UUID(relay_id) if relay_id is not None and self._is_registered else None,
            stopping=self._stop.is_set(),
            idle_for=0.0 if turning is None else turning.idle_for(),
            lease=self._settings.lease,
        )

    def stop(self) -> None:
        """Finish gracefully. `run` returns when it is done."""
        self._stop.set()

    def wake(self) -> None:
        """Look for messages now: a writer in this process has committed some."""
        for pipeline in self._pipelines.values():
            pipeline.wake()

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
        """Deliver until stopped, or `once`: until nothing is left that could be delivered now.

        A lost lease starts a new life under a new id.
        """
        self._once = once
        self._turning = Turning(asyncio.get_running_loop(), clock=self._clock)
        await self._store.open()
        try:
            while not self._stop.is_set():
                try:
                    await self._live()
                except LeaseLost as lost:
                    self._telemetry.lease_lost(reason=str(lost))
        finally:
            await self._store.close()

    # --- one life ---

    async def _live(self) -> None:
        self._is_registered = False
        standing = Standing(lease=self._settings.lease)
        self.relay_id = str(standing.relay_id)
        self._pipelines = self._assembled(standing)
        watch = Watch(
            self._store,
            standing,
            self._pipelines,
            settings=self._settings,
            clock=self._clock,
            telemetry=self._telemetry,
        )
        heartbeat = Heartbeat(
            self._store, standing, settings=self._settings, clock=self._clock, telemetry=self._telemetry,
            reachable=self._reachable, progress=lambda: self._progress(watch),
        )  # fmt: skip
        if not await self._register(heartbeat, standing):
            return
        self._is_registered = True
        async with self._store.wakeups(self._notified) as wakeups:
            services: list[Coroutine[Any, Any, None]] = [heartbeat.run(), watch.run(), *self._duties()]
            services += [pipeline.run() for pipeline in self._pipelines.values()]
            if self._store.features.notifies:
                self._drowsing = self._drowsing_with(heartbeat, wakeups)
                services.append(self._drowsing.run())
            if self._once:
                services.append(self._stop_when_idle())
            await self._run_services(services, standing)

    def _notified(self) -> None:
        self.wake()
        if self._drowsing is not None:
            self._drowsing.notified()

    def _drowsing_with(self, heartbeat: Heartbeat, wakeups: Wakeups) -> Drowsing:
        async def tell() -> None:
            heartbeat.is_asleep = drowsing.is_asleep
            await heartbeat.run_once()

        sleepers = [pipeline.sleeper for pipeline in self._pipelines.values()]
        drowsing = Drowsing(sleepers, wakeups=wakeups, tell=tell, peek=self._peek)
        return drowsing

    def _peek(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.peek()

    async def _stop_when_idle(self) -> None:
        while not all(pipeline.is_idle for pipeline in self._pipelines.values()):  # noqa: ASYNC110 - many of them
            await asyncio.sleep(_IDLE_LOOK)
        self.stop()
        await asyncio.Event().wait()

    async def _run_services(self, services: Sequence[Coroutine[Any, Any, None]], standing: Standing) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(service) for service in services]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await self._finish(standing)
        finally:
            everything: list[asyncio.Task[Any]] = [*tasks, stopped]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _finish(self, standing: Standing) -> None:
        """Stop claiming, let the windows finish, record everything, leave the registry."""
        await asyncio.gather(
            *(
                pipeline.drain(within=pipeline.work.settings.send_timeout.total_seconds())
                for pipeline in self._pipelines.values()
            )
        )
        with contextlib.suppress(StoreError):
            await self._store.leave(standing.relay_id)

    async def _register(self, heartbeat: Heartbeat, standing: Standing) -> bool:
        while not self._stop.is_set():
            try:
                await heartbeat.register(self._info(standing))
                return True
            except StoreUnavailable as error:
                self._telemetry.store_failed("registering", error)
                await asyncio.sleep(self._settings.poll_interval.total_seconds())
        return False

    def _info(self, standing: Standing) -> RelayInfo:
        names = list(self._pipelines)
        return RelayInfo(
            relay_id=standing.relay_id, service=self._settings.service, host=socket.gethostname(), pid=os.getpid(),
            version=version("pillarbox"), destinations=names, reachable=names,
        )  # fmt: skip

    def _assembled(self, standing: Standing) -> dict[str, Pipeline]:
        if not self._settings.owns_lanes:
            return {}
        pipelines = {name: self._pipeline(destination, standing) for name, destination in self._destinations.items()}
        skipping = Destination(SkippingTransport, DestinationSettings(name=SKIPPED_DESTINATION))
        pipelines[SKIPPED_DESTINATION] = self._pipeline(skipping, standing)
        return pipelines

    def _pipeline(self, destination: Destination, standing: Standing) -> Pipeline:
        settings = destination.settings
        judge_of = SkippingJudge if settings.name == SKIPPED_DESTINATION else Judge
        work = Work(
            settings, store=self._store, standing=standing, clock=self._clock, telemetry=self._telemetry,
            dice=self._dice, judge=judge_of(retry=settings.retry, after_failure=settings.after_failure),
        )  # fmt: skip
        return Pipeline(
            work, transport=destination.transport(), open_lone=destination.transport,
            sleeper=Sleeper(poll_interval=self._settings.poll_interval), lone_cap=self._settings.lone_cap,
            patience=self._settings.lease,
        )  # fmt: skip

    def _reachable(self) -> list[str]:
        return [name for name, pipeline in self._pipelines.items() if pipeline.is_reachable]

    def _progress(self, watch: Watch) -> float:
        """When the loop that turned least recently did so."""
        return min([watch.beat, *(pipeline.beat for pipeline in self._pipelines.values())])

    # --- duties ---

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = []
        settings = self._settings
        if Duty.CLEAN in settings.duties:
            janitor = Janitor(
                self._store, retention=settings.retention, telemetry=self._telemetry, archive=self._archive
            )
            duties.append(self._repeated("cleaning", janitor.run_once, settings.retention.every.total_seconds()))
        if Duty.RECOVER in settings.duties:
            every = settings.lease.total_seconds()
            duties.append(self._repeated("forgetting dead relays", self._forget, every))
        if any(destination.settings.dead_letter for destination in self._destinations.values()):
            duties.append(self._repeated("forwarding dead letters", self._forward, _FORWARD_INTERVAL))
        return duties

    async def _repeated(self, what: str, once: Callable[[], Awaitable[object]], seconds: float) -> None:
        """A duty that fails, be it by the user's own archive, is told and tried again: delivery goes on."""
        while True:
            try:
                await once()
            except Exception as error:
                self._telemetry.duty_failed(what, error)
            await asyncio.sleep(seconds * (0.9 + self._dice.random() / 5))

    async def _forget(self) -> None:
        await self._store.forget(stale_after=self._settings.stale_after)

    async def _forward(self) -> None:
        """Failed messages go on to their dead-letter destination."""
        for name, destination in self._destinations.items():
            if (to := destination.settings.dead_letter) is not None:
                failed = Selection(states=[State.FAILED], destination=name)
                await self._store.redrive(failed, by=f"relay {self.relay_id}", limit=_FORWARD_BATCH, to=to)
