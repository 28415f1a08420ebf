"""Stores behind a dashboard, and the one sampler that reads their status for everybody who looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from pillarbox.config import Config
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import Rollup, Store
from pillarbox.dashboard.charts import WINDOWS, list_backlogs
from pillarbox.dashboard.conditions import Attention, Line, count_attention, list_lines
from pillarbox.dashboard.formatting import format_count
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.configuration import build_monitor, read_thresholds
from pillarbox.operations.log_limit import LogLimit
from pillarbox.operations.monitor import Monitor, Status
from pillarbox.redaction import redact_line
from pillarbox.relay.configuration import ConfiguredDestination, read_destinations, read_relay_section
from pillarbox.relay.settings import RelaySettings

__all__ = ["Sample", "Sampler", "StoreSource"]

log = logging.getLogger("pillarbox.dashboard")

_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMEOUT: Final = 10.0
"""Seconds after which a store that does not answer counts as down for this look."""


class StoreSource:
    """One store of a dashboard: opened when it is first needed, in the loop that needs it."""

    def __init__(
        self, name: str, store: Store, *, label: str = "", config: Config | None = None, choice: str = ""
    ) -> None:
        self.name = name
        self.store = store
        self.label = label
        """Its URL without secrets, for people."""
        self.choice = choice
        """What `--store` must say for commands to mean this store; empty if they mean it without."""
        self.config = config
        self.destinations: Mapping[str, ConfiguredDestination] = _read_destinations(config)
        """Those that the configuration knows."""
        self.relay_settings = RelaySettings() if config is None else read_relay_section(config).settings
        self.thresholds = Thresholds() if config is None else read_thresholds(config)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def open(self) -> Store:
        """Return the store, connected; the error of connecting if that fails, and the next call tries again."""
        async with self._opening:
            if not self._is_open:
                await self.store.open()
                self._is_open = True
        return self.store

    async def close(self) -> None:
        async with self._opening:
            if self._is_open:
                self._is_open = False
                await self.store.close()

    @property
    def monitor(self) -> Monitor:
        return Monitor(self.store) if self.config is None else build_monitor(self.store, self.config)


def _read_destinations(config: Config | None) -> Mapping[str, ConfiguredDestination]:
    try:
        return {} if config is None else read_destinations(config)
    except ConfigError:  # none is configured here, or not wholly: the page needs no transport
        return {}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a store when somebody last looked, and whether it answers now."""

    status: Status | None
    """The last good one; None before the first."""
    alerts: Sequence[Alert] = ()
    lines: Sequence[Line] = ()
    """What the overview says about each destination, inbox and other subject of an alert."""
    backlogs: Mapping[str, Sequence[int | None]] = {}
    """Backlog of each destination by minute, in the last hour."""
    error: str | None = None
    """Why the store did not answer this time."""
    read_at: float = 0.0
    """When, by this process's own clock."""

    @property
    def failed_text(self) -> str:
        """How many messages have failed for their destinations, as the page of failures lists them; empty for none."""
        if self.status is None:
            return ""
        rows = self.status.destinations
        return _format_badge(sum(one.failed for one in rows), more=any("failed" in one.more for one in rows))

    @property
    def inbox_text(self) -> str:
        """How many messages consumers could not handle, as the page of inboxes lists them; empty if there are none."""
        if self.status is None:
            return ""
        rows = self.status.inboxes
        return _format_badge(sum(one.failed for one in rows), more=any(one.more for one in rows))

    @property
    def skipped_text(self) -> str:
        """How many messages no route takes; empty if there are none."""
        if self.status is None:
            return ""
        return _format_badge(self.status.skipped, more=self.status.skipped_more)

    @property
    def attention(self) -> Attention:
        """How many lines of the overview need attention."""
        return count_attention(self.lines)

    @property
    def is_well(self) -> bool:
        return self.error is None and not any(alert.severity is not Severity.INFO for alert in self.alerts)

    @property
    def at(self) -> datetime | None:
        return None if self.status is None else self.status.at

    @property
    def version(self) -> str:
        """Changes when something that a page shows has changed; not with the time alone."""
        if self.status is None:
            return f"{self.error}"
        shown = msgspec.structs.replace(self.status, at=_NO_TIME)
        # A heartbeat alone is no news.
        shown = msgspec.structs.replace(
            shown, relays=[msgspec.structs.replace(one, expires_at=None) for one in shown.relays]
        )
        return sha256(repr((shown, self.error)).encode()).hexdigest()[:16]


def _format_badge(count: int, *, more: bool) -> str:
    return format_count(count, more=more) if count else ""


class Sampler:
    """Reads the status of each store at most once per interval, however many ask."""

    def __init__(self, sources: Mapping[str, StoreSource], *, interval: timedelta) -> None:
        self._sources = sources
        self.interval = interval
        self._samples: dict[str, Sample] = {}
        self._reads: dict[str, asyncio.Task[Sample]] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {name: set() for name in sources}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._lines = LogLimit(log)
        self.reads = 0
        """Number of looks at any store, for whoever wants to know what watching costs."""

    async def get(self, name: str, *, fresh: bool = False) -> Sample:
        """Return the sample of a store; a new one if the last is older than the interval, or a fresh one is wanted."""
        sample = self._samples.get(name)
        age = self.interval.total_seconds()
        if not fresh and sample is not None and time.monotonic() - sample.read_at < age:
            return sample
        task = self._reads.get(name)
        if task is None:
            task = self._reads[name] = asyncio.create_task(self._read(name))
        done, _ = await asyncio.wait({task}, timeout=_TIMEOUT)
        if done:
            return task.result()
        return self._keep(name, f"The store did not answer within {_TIMEOUT:g} s.")

    def latest(self, name: str) -> Sample | None:
        """Return the last sample, however old."""
        return self._samples.get(name)

    async def _read(self, name: str) -> Sample:
        source = self._sources[name]
        self.reads += 1
        try:
            store = await source.open()
            status = await source.monitor.status(served=source.destinations)
            rollups: Sequence[Rollup] = await store.rollups(window=WINDOWS["1h"].length)
            alerts = find_alerts(status, source.thresholds)
            sample = Sample(
                status=status,
                alerts=alerts,
                lines=list_lines(status, alerts),
                backlogs=list_backlogs(rollups, now=status.at, window=WINDOWS["1h"]),
                read_at=time.monotonic(),
            )
            self._samples[name] = sample
            return sample
        except PillarboxError as error:
            return self._keep(name, redact_line(str(error)))
        except Exception as error:  # a row that nobody could have written must not take every page away
            self._lines.write(logging.ERROR, "the status of the store %s cannot be read", name, error=error)
            return self._keep(name, "Its status cannot be read; the log of the dashboard says why.")
        finally:
            self._reads.pop(name, None)

    def _keep(self, name: str, error: str) -> Sample:
        """Keep the last good numbers, with the reason why there are no newer ones."""
        last = self._samples.get(name) or Sample(status=None)
        sample = msgspec.structs.replace(last, error=error, read_at=time.monotonic())
        self._samples[name] = sample
        return sample

    # --- watching ---

    @asynccontextmanager
    async def watch(self, name: str) -> AsyncIterator[asyncio.Event]:
        """Set the event after each look at the store, while the block runs. All watchers share the looks."""
        event = asyncio.Event()
        self._watchers[name].add(event)
        if name not in self._loops:
            self._loops[name] = asyncio.create_task(self._repeat(name))
        try:
            yield event
        finally:
            self._watchers[name].discard(event)
            if not self._watchers[name] and (task := self._loops.pop(name, None)) is not None:
                task.cancel()

    async def _repeat(self, name: str) -> None:
        while True:
            await self.get(name)
            for event in self._watchers[name]:
                event.set()
            await asyncio.sleep(self.interval.total_seconds())

    async def close(self) -> None:
        """End every look that is under way."""
        for task in (*self._loops.values(), *self._reads.values()):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._loops.clear()
