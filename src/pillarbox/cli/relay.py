"""`pillarbox relay`: deliver until stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import click
import msgspec

from pillarbox.cli._errors import Session
from pillarbox.cli._http import http_option, serve_app, serve_health
from pillarbox.cli._logs import LogSettings, program_log, start_logging
from pillarbox.cli._options import configuration_options
from pillarbox.cli._process import RelayProcess
from pillarbox.cli._signals import stop_on_signals
from pillarbox.cli._supervisor import supervise
from pillarbox.cli.dashboard import show_login, to_public_address
from pillarbox.config import Config, read_outbox_section, read_section
from pillarbox.contracts.store import Count, MonitorStore, Phase, PhaseCount, Selection
from pillarbox.dashboard.settings import read_dashboard_section
from pillarbox.errors import ConfigError, MissingExtra, StoreBusy, StoreUnavailable
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.operations.configuration import read_handed_off, read_near_failure, read_thresholds
from pillarbox.operations.health import HealthApp, Probes, ProbeSettings, parse_address
from pillarbox.operations.monitor import Monitor
from pillarbox.operations.relays_health import RelaysProbes
from pillarbox.relay.addresses import Stores
from pillarbox.relay.configuration import (
    ConfiguredDestination,
    list_served_destinations,
    read_process_section,
    read_relay_section,
    read_sharing_section,
    read_stores,
)
from pillarbox.relay.relay import Relay
from pillarbox.relay.relays import Relays, StoreHealth
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.factory import open_store
from pillarbox.telemetry import CompositeTelemetry, LoggingTelemetry, Telemetry, in_store

if TYPE_CHECKING:
    from pillarbox.dashboard.login import UrlLogin
    from pillarbox.operations.prometheus import StoresTelemetry

__all__ = ["relay"]

_EPILOG = """The first SIGTERM or SIGINT lets what is under way finish; the second ends the program at once.

With --processes a supervisor runs several relays, starts again what dies, and serves --http for all of them.

\b
Example:
  pillarbox relay --store sqlite:///shop.db --to billing=https://billing.example/hooks
"""
_ONCE = (
    "Deliver what can be delivered now, then end; with 1 if messages wait for a destination that is down or paused, "
    "with 3 if the store cannot be written for the length of a lease."
)


_STOP_MARGIN: Final = timedelta(seconds=5)


@click.command("relay", epilog=_EPILOG)
@configuration_options
@http_option
@click.option("--dashboard", is_flag=True, envvar="PILLARBOX_SERVE_DASHBOARD", show_envvar=True,
              help="Serve the dashboard at the address of --http too.")  # fmt: skip
@click.option("--once", is_flag=True, envvar="PILLARBOX_ONCE", show_envvar=True, help=_ONCE)
def relay(config: Config, http: str | None, dashboard: bool, once: bool) -> None:
    """Deliver every committed message, in order per key, until stopped. Run as many as you like."""
    # Every section is read before anything starts: a mistake in one that is not used here is reported too.
    logs = read_section(config, LogSettings, at=("log",)).settings
    read_outbox_section(config)
    settings = read_relay_section(config).settings
    build_monitor = _read_monitor(config)
    probe_settings = read_section(config, ProbeSettings, at=("probes",)).settings
    served = list_served_destinations(config)
    address, login = _read_address(http, config, dashboard=dashboard)
    stores = read_stores(config)
    session: Session = click.get_current_context().obj
    process, count = session.process, _read_count(config, once=once)
    if process is None and count > 1:
        start_logging(logs, process="supervisor")
        raise click.exceptions.Exit(supervise(session.arguments, count=count, address=address))
    program = _Program(
        config=config, served=served, settings=settings, process=process, build_monitor=build_monitor,
        probe_settings=probe_settings, deliveries=logs.deliveries, counts=address is not None or process is not None,
    )  # fmt: skip
    service = program.build_relays(stores) if stores.are_many else program.build_relay(stores)
    relay = service.relay
    start_logging(logs, process=None if process is None else process.name)

    def stop(reason: str) -> None:
        if not relay.health.stopping:
            program_log.info("%s: finishing what is under way; a second signal ends it at once", reason)
        relay.stop()

    async def run() -> int:
        code = await service.run(once)
        program_log.info("stopped")
        return code

    build_app = service.build_app

    def stop_from_thread(reason: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has stopped already
            runner.get_loop().call_soon_threadsafe(stop, reason)

    with (
        asyncio.Runner(loop_factory=_find_loop_factory()) as runner,
        stop_on_signals(stop, loop=runner.get_loop()),
        _serve(address, build_app, config if dashboard else None, login)
        if process is None
        else process.serve(
            build_app,
            stop=stop_from_thread,
            is_started=lambda: relay.health.relay_id is not None,
            grace=_compute_grace(served, settings),
        ),
    ):
        code = runner.run(run())
    raise click.exceptions.Exit(code)


@dataclass(frozen=True, slots=True)
class _Service:
    """What this program runs: a relay, or relays over many stores."""

    relay: Relay | Relays
    run: Callable[[bool], Awaitable[int]]
    """Runs, with True once, and returns the exit code."""
    build_app: Callable[[], HealthApp]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The configuration of one run, from which its service is built."""

    config: Config
    served: Sequence[ConfiguredDestination]
    settings: RelaySettings
    process: RelayProcess | None
    build_monitor: Callable[[MonitorStore, timedelta], Monitor]
    probe_settings: ProbeSettings
    deliveries: int
    counts: bool
    """Something is counted for `/metrics`."""

    @property
    def _served_names(self) -> Collection[str]:
        return {one.name for one in self.served}

    def build_relay(self, stores: Stores) -> _Service:
        """Build the relay of one store."""
        ((name, address),) = stores.named.items()
        retention = self.settings.retention
        retention = msgspec.structs.replace(retention, archive=stores.choose_archive(retention.archive, name))
        store = open_store(address.url, names=address.names)
        outages = OutageTracker()
        metrics = _build_metrics(self.process) if self.counts else []
        relay = Relay(
            store,
            [one.build() for one in self.served],
            settings=msgspec.structs.replace(self.settings, retention=retention),
            labels=_build_labels(self.settings, self.process),
            telemetry=CompositeTelemetry(
                LoggingTelemetry(deliveries=self.deliveries), outages, *metrics, *_build_tracing()
            ),
        )

        async def run(once: bool) -> int:
            # A relay keeps trying when its store goes away. At the start a wrong URL is likelier: that ends the
            # program. A store that answers and is busy has the right URL: the relay waits for it.
            with suppress(StoreBusy):
                await store.open()
            await store.close()
            _log_start(str(address), self.served, self.settings)
            await relay.run(once=once)
            if not once or not self.settings.owns_lanes:
                return 0
            return 1 if await _count_waiting(store, outages, self._served_names) else 0

        def build_app() -> HealthApp:
            # A store of its own: a relay that hangs must not make its probes hang.
            own_store = open_store(address.url, names=address.names, asks_only=True, reads_only=True)
            probes = Probes(own_store, lambda: relay.health, settings=self.probe_settings, monitor=self.build_monitor)
            return HealthApp(probes, collectors=metrics)

        return _Service(relay, run, build_app)

    def build_relays(self, stores: Stores) -> _Service:
        """Build the relays of many stores."""
        outages: dict[str, OutageTracker] = {}
        metrics = _build_store_metrics(self.process, lambda: relays.stores) if self.counts else None
        tracing = _build_tracing()

        def build_telemetry(name: str) -> Telemetry:
            own: list[Telemetry] = [LoggingTelemetry(deliveries=self.deliveries), *tracing]
            if name:
                own.append(outages.setdefault(name, OutageTracker()))
                own += [] if metrics is None else [metrics.get(name)]
            return CompositeTelemetry(*own)

        relays = Relays(
            stores,
            [one.build() for one in self.served],
            settings=self.settings,
            sharing=read_sharing_section(self.config).settings,
            labels=_build_labels(self.settings, self.process),
            telemetry=build_telemetry,
        )

        async def run(once: bool) -> int:
            raise_file_limit()
            _log_start(_describe_stores(stores), self.served, self.settings)
            await relays.run(once=once)
            return await self._finish_once(relays, outages) if once else 0

        def build_app() -> HealthApp:
            probes = RelaysProbes(
                lambda: relays.health, lambda: relays.stores, lambda: relays.refused,
                addresses=lambda: relays.addresses, monitor=self.build_monitor,
                on_sample=None if metrics is None else metrics.set_statuses,
            )  # fmt: skip
            return HealthApp(probes, collectors=[] if metrics is None else [metrics])

        return _Service(relays, run, build_app)

    async def _finish_once(self, relays: Relays, outages: Mapping[str, OutageTracker]) -> int:
        """Report the stores that were not served and the messages that wait; return the exit code."""
        failed = [one for one in relays.stores if one.error is not None]
        for one in failed:
            program_log.error("the store %s was not served: %s", one.name, one.error)
        waiting = 0
        for name, address in relays.addresses.items():
            if name in outages and not any(one.name == name for one in failed):
                with in_store(name):
                    waiting += await _count_waiting(
                        open_store(address.url, names=address.names), outages[name], self._served_names
                    )
        return StoreUnavailable.exit_code if failed or relays.refused else 1 if waiting else 0


def _describe_stores(stores: Stores) -> str:
    count = len(stores.named)
    named = f"{count} stores" if count != 1 else "1 store"
    if stores.tenants is None:
        return named
    return f"{named} and the tenants that a query names" if count else "the tenants that a query names"


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows: an SQLite store has up to five, a connection one."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _read_address(
    http: str | None, config: Config, *, dashboard: bool
) -> tuple[tuple[str, int] | None, UrlLogin | None]:
    """Read where to serve, and how to log in to a dashboard for which no login is configured.

    `ConfigError` if the dashboard cannot be served as it was asked for.
    """
    address = None if http is None else parse_address(http)
    if not dashboard:
        return address, None
    if address is None:
        raise ConfigError("--dashboard needs an address: give --http 127.0.0.1:9464 with it.")
    if read_process_section(config).settings.processes > 1:
        raise ConfigError("--dashboard runs beside one relay: with --processes, run `pillarbox dashboard` by itself.")
    from pillarbox.dashboard.serve import build_dashboard

    # A wrong login is found now, and not when the relay runs.
    return address, build_dashboard(config, {}, host=address[0]).login


def _serve(
    address: tuple[str, int] | None,
    build_app: Callable[[], HealthApp],
    config: Config | None,
    login: UrlLogin | None,
) -> AbstractContextManager[None]:
    """Serve probes and metrics while the block runs, and the dashboard if there is a configuration for it."""
    if address is None or config is None:
        return serve_health(address, build_app)
    from pillarbox.dashboard.serve import ProbesAndDashboard, build_dashboard

    host, settings = address[0], read_dashboard_section(config)

    def build() -> ProbesAndDashboard:
        return ProbesAndDashboard(build_app(), build_dashboard(config, {}, host=host, login=login))

    def announce(address: str) -> None:
        if login is not None:
            show_login(login, to_public_address(address, settings))

    return serve_app(address, build, root_path=settings.root_path, on_start=announce)


class OutageTracker(Telemetry):
    """Destinations that are down or paused now, and those with blocked addresses."""

    def __init__(self) -> None:
        self._blocked: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._paused: set[str] = set()

    @property
    def destinations(self) -> set[str]:
        return self._down | self._paused

    @property
    def partly(self) -> set[str]:
        """Destinations of which only some addresses take nothing."""
        return {destination for destination, _ in self._blocked} - self.destinations

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        self._blocked.add((destination, address))

    def on_address_unblocked(self, destination: str, address: str) -> None:
        self._blocked.discard((destination, address))

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._down.add(destination)

    def on_breaker_closed(self, destination: str) -> None:
        self._down.discard(destination)

    def on_paused(self, destination: str, *, reason: str) -> None:
        self._paused.add(destination)

    def on_resumed(self, destination: str) -> None:
        self._paused.discard(destination)

    def on_lease_lost(self, *, reason: str) -> None:
        # The relay starts again without them, and never reports their end.
        self._blocked.clear()
        self._down.clear()
        self._paused.clear()


def _read_count(config: Config, *, once: bool) -> int:
    """Read the number of processes. `--once` would end each when its own share is delivered: it runs in one."""
    count = read_process_section(config).settings.processes
    if once and count > 1:
        raise ConfigError("--once runs in one process: give --processes 1 with it.")
    return count


def _read_monitor(config: Config) -> Callable[[MonitorStore, timedelta], Monitor]:
    """Return what builds a monitor with the configured thresholds."""
    thresholds, near_failure = read_thresholds(config), read_near_failure(config)
    handed_off = read_handed_off(config)
    return lambda store, lease: Monitor(
        store, lease=lease, stuck_after=thresholds.listed_after, near_failure=near_failure, handed_off=handed_off
    )


def _build_labels(settings: RelaySettings, process: RelayProcess | None) -> Mapping[str, str]:
    """Return the labels of this relay; one of several processes has its place among them."""
    return settings.labels if process is None else {**settings.labels, "process": process.name}


def _compute_grace(served: Sequence[ConfiguredDestination], settings: RelaySettings) -> timedelta:
    """Return the time that a graceful stop takes at most, unless something blocks the loop."""
    timeouts = [one.section.settings.send_timeout for one in served]
    return max(timeouts, default=timedelta(0)) + settings.lease + _STOP_MARGIN


def _build_metrics(process: RelayProcess | None) -> list[Telemetry]:
    """Build what counts for `/metrics`; nothing if the client library is missing."""
    try:
        from pillarbox.operations.prometheus import PrometheusTelemetry
    except MissingExtra:
        return []
    return [PrometheusTelemetry(process=None if process is None else str(process.number))]


def _build_store_metrics(
    process: RelayProcess | None, stores: Callable[[], Sequence[StoreHealth]]
) -> StoresTelemetry | None:
    """Build what counts for `/metrics`, by store; None if the client library is missing."""
    try:
        from pillarbox.operations.prometheus import StoresTelemetry
    except MissingExtra:
        return None
    return StoresTelemetry(
        lambda: {one.name: one.state == "running" for one in stores()},
        process=None if process is None else str(process.number),
    )


def _build_tracing() -> list[Telemetry]:
    """Build what records spans; nothing if no OpenTelemetry SDK is installed and set up."""
    try:
        from pillarbox.operations.opentelemetry import OpenTelemetry, is_recording
    except MissingExtra:
        return []
    return [OpenTelemetry()] if is_recording() else []


def _log_start(url: str, served: Sequence[ConfiguredDestination], settings: RelaySettings) -> None:
    if not settings.owns_lanes:
        duties = " and ".join(settings.duties)
        text = "pillarbox %s delivers nothing from %s: its duties are %s, without send and retry"
        program_log.info(text, version("pillarbox"), url, duties, extra={"duties": list(settings.duties)})
        return
    urls = {one.name: one.transport_options.redact_url() for one in served}
    destinations = ", ".join(f"{name} ({address})" for name, address in urls.items())
    fields = {"version": version("pillarbox"), "store": url, "destinations": urls}
    program_log.info("pillarbox %s delivers from %s to %s", version("pillarbox"), url, destinations, extra=fields)


def describe_open(
    counts: Sequence[Count], phases: Sequence[PhaseCount], *, served: Collection[str], known: Collection[str]
) -> list[str]:
    """Describe what is open at the end of `--once` and why, a line for each destination.

    Why nothing goes to the destinations in `known` is logged already: only what else is open there is described.
    """
    lines = []
    for name in sorted({one.destination for one in counts} - {SKIPPED_DESTINATION}):
        own = [one for one in counts if one.destination == name]
        still_open = [one for one in own if one.state in (State.PENDING, State.SENDING)]
        due, later = (sum(one.count for one in still_open if one.due is is_due) for is_due in (True, False))
        retried, parked = (
            sum(one.count for one in phases if one.destination == name and one.phase is phase)
            for phase in (Phase.RETRY, Phase.PARKED)
        )
        failed = sum(one.count for one in own if one.state is State.FAILED)
        reasons = []
        if name in served and name not in known:
            reasons = [
                (retried, "to be tried again"),
                (parked, "behind another of their key"),
                (due - retried - parked, "with another relay"),
            ]
        elif name not in served:
            reasons = [(due, "because this relay does not serve it")]
        reasons += [(later, "deferred until a later time"), (failed, "failed: see `pillarbox failures`")]
        parts = [f"{count} {why}" for count, why in reasons if count > 0]
        if parts:
            lines.append(f"{name}: {'; '.join(parts)}")
    return lines


async def _count_waiting(store: MonitorStore, outages: OutageTracker, served: Collection[str]) -> int:
    """Count the messages that could not be delivered because of outages, and log an error if there are any.

    What is open for another reason is logged too, with that reason.
    """
    destinations, partly = outages.destinations, outages.partly
    await store.open()
    try:
        counts, phases = await store.counts(), await store.count_phases()
        held = [
            await store.find(
                Selection(states=[State.PENDING], destination=name, tried=True), limit=10_000, payloads=False
            )
            for name in partly
        ]
    finally:
        await store.close()
    waiting = sum(map(len, held)) + sum(
        one.count
        for one in counts
        if one.due and one.state in (State.PENDING, State.SENDING) and one.destination in destinations
    )
    for line in describe_open(counts, phases, served=served, known=destinations | partly):
        program_log.info("not delivered to %s", line)
    if skipped := sum(one.count for one in counts if one.state is State.SKIPPED):
        program_log.warning(
            "%d skipped, because no route matches: see `pillarbox messages list --state skipped`", skipped
        )
    if waiting:
        names = ", ".join(sorted(destinations | partly))
        program_log.error("%d messages wait for what is down or paused: %s", waiting, names)
    return waiting


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
