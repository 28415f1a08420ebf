"""`pillarbox relay`: deliver until stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Final

import click

from pillarbox.cli._errors import Session
from pillarbox.cli._http import http_option, serve_app, serve_health
from pillarbox.cli._logs import LogSettings, program_log, start_logging
from pillarbox.cli._options import configuration_options
from pillarbox.cli._process import RelayProcess
from pillarbox.cli._signals import stop_on_signals
from pillarbox.cli._supervisor import supervise
from pillarbox.config import Config, read_outbox_section, read_section
from pillarbox.contracts.store import MonitorStore, Selection
from pillarbox.errors import ConfigError, MissingExtra, StoreBusy
from pillarbox.message import State
from pillarbox.operations.configuration import read_near_failure, read_thresholds
from pillarbox.operations.health import HealthApp, Probes, ProbeSettings, parse_address
from pillarbox.operations.monitor import Monitor
from pillarbox.relay.configuration import (
    ConfiguredDestination,
    list_served_destinations,
    read_process_section,
    read_relay_section,
    read_store,
)
from pillarbox.relay.relay import Relay
from pillarbox.relay.settings import RelaySettings
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import StoreUrl
from pillarbox.telemetry import CompositeTelemetry, LoggingTelemetry, Telemetry

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
    address = _read_address(http, config, dashboard=dashboard)
    url, names = read_store(config)
    session: Session = click.get_current_context().obj
    process, count = session.process, _read_count(config, once=once)
    if process is None and count > 1:
        start_logging(logs, process="supervisor")
        raise click.exceptions.Exit(supervise(session.arguments, count=count, address=address))
    store = open_store(url, names=names)
    outages = OutageTracker()
    metrics = [] if address is None else _build_metrics(process)
    relay = Relay(
        store,
        [one.build() for one in served],
        settings=settings,
        labels=_build_labels(settings, process),
        telemetry=CompositeTelemetry(
            LoggingTelemetry(deliveries=logs.deliveries), outages, *metrics, *_build_tracing()
        ),
    )
    start_logging(logs, process=None if process is None else process.name)

    def stop(reason: str) -> None:
        if not relay.health.stopping:
            program_log.info("%s: finishing what is under way; a second signal ends it at once", reason)
        relay.stop()

    async def run() -> int:
        # A relay keeps trying when its store goes away. At the start a wrong URL is likelier: that ends the program.
        # A store that answers and is busy has the right URL: the relay waits for it.
        with suppress(StoreBusy):
            await store.open()
        await store.close()
        _log_start(url, served, settings)
        await relay.run(once=once)
        waiting = await _count_waiting(store, outages) if once else 0
        program_log.info("stopped")
        return waiting

    def build_app() -> HealthApp:
        # A store of its own: a relay that hangs must not make its probes hang.
        own_store = open_store(url, names=names, asks_only=True)
        probes = Probes(own_store, lambda: relay.health, settings=probe_settings, monitor=build_monitor)
        return HealthApp(probes, collectors=metrics)

    def stop_from_thread(reason: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has stopped already
            runner.get_loop().call_soon_threadsafe(stop, reason)

    with (
        asyncio.Runner(loop_factory=_find_loop_factory()) as runner,
        stop_on_signals(stop, loop=runner.get_loop()),
        _serve(address, build_app, config if dashboard else None)
        if process is None
        else process.serve(
            build_app,
            stop=stop_from_thread,
            is_started=lambda: relay.health.relay_id is not None,
            grace=_compute_grace(served, settings),
        ),
    ):
        waiting = runner.run(run())
    raise click.exceptions.Exit(1 if waiting else 0)


def _read_address(http: str | None, config: Config, *, dashboard: bool) -> tuple[str, int] | None:
    """Read where to serve; `ConfigError` if the dashboard cannot be served as it was asked for."""
    address = None if http is None else parse_address(http)
    if not dashboard:
        return address
    if address is None:
        raise ConfigError("--dashboard needs an address: give --http 127.0.0.1:9464 with it.")
    if read_process_section(config).settings.processes > 1:
        raise ConfigError("--dashboard runs beside one relay: with --processes, run `pillarbox dashboard` by itself.")
    from pillarbox.dashboard.serve import build_dashboard

    build_dashboard(config, {}, host=address[0])  # a wrong login is found now, and not when the relay runs
    return address


def _serve(
    address: tuple[str, int] | None, build_app: Callable[[], HealthApp], config: Config | None
) -> AbstractContextManager[None]:
    """Serve probes and metrics while the block runs, and the dashboard if there is a configuration for it."""
    if address is None or config is None:
        return serve_health(address, build_app)
    from pillarbox.dashboard.serve import ProbesAndDashboard, build_dashboard

    host = address[0]
    return serve_app(address, lambda: ProbesAndDashboard(build_app(), build_dashboard(config, {}, host=host)))


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


def _read_count(config: Config, *, once: bool) -> int:
    """Read the number of processes. `--once` would end each when its own share is delivered: it runs in one."""
    count = read_process_section(config).settings.processes
    if once and count > 1:
        raise ConfigError("--once runs in one process: give --processes 1 with it.")
    return count


def _read_monitor(config: Config) -> Callable[[MonitorStore, timedelta], Monitor]:
    """Return what builds a monitor with the configured thresholds."""
    thresholds, near_failure = read_thresholds(config), read_near_failure(config)
    return lambda store, lease: Monitor(
        store, lease=lease, stuck_after=thresholds.listed_after, near_failure=near_failure
    )


def _build_labels(settings: RelaySettings, process: RelayProcess | None) -> Mapping[str, str]:
    """Return the labels of this relay; one of several processes has its place among them."""
    return settings.labels if process is None else {**settings.labels, "process": process.name}


def _compute_grace(served: Sequence[ConfiguredDestination], settings: RelaySettings) -> timedelta:
    """Return the time that a graceful stop takes at most, unless something blocks the loop."""
    return max(one.section.settings.send_timeout for one in served) + settings.lease + _STOP_MARGIN


def _build_metrics(process: RelayProcess | None) -> list[Telemetry]:
    """Build what counts for `/metrics`; nothing if the client library is missing."""
    try:
        from pillarbox.operations.prometheus import PrometheusTelemetry
    except MissingExtra:
        return []
    return [PrometheusTelemetry(process=None if process is None else str(process.number))]


def _build_tracing() -> list[Telemetry]:
    """Build what records spans; nothing if no OpenTelemetry SDK is installed and set up."""
    try:
        from pillarbox.operations.opentelemetry import OpenTelemetry, is_recording
    except MissingExtra:
        return []
    return [OpenTelemetry()] if is_recording() else []


def _log_start(url: StoreUrl, served: Sequence[ConfiguredDestination], settings: RelaySettings) -> None:
    if not settings.owns_lanes:
        duties = " and ".join(settings.duties)
        text = "pillarbox %s delivers nothing from %s: its duties are %s, without send and retry"
        program_log.info(text, version("pillarbox"), url, duties, extra={"duties": list(settings.duties)})
        return
    urls = {one.name: one.transport_options.redact_url() for one in served}
    destinations = ", ".join(f"{name} ({address})" for name, address in urls.items())
    fields = {"version": version("pillarbox"), "store": str(url), "destinations": urls}
    program_log.info("pillarbox %s delivers from %s to %s", version("pillarbox"), url, destinations, extra=fields)


async def _count_waiting(store: MonitorStore, outages: OutageTracker) -> int:
    """Count the messages that could not be delivered because of outages, and log an error if there are any."""
    destinations, partly = outages.destinations, outages.partly
    if not destinations and not partly:
        return 0
    await store.open()
    try:
        counts = await store.counts()
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
