"""`pillarbox relay`: deliver until told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version

import click
import msgspec

from pillarbox.cli.configuring import configuration_options
from pillarbox.cli.logs import LogSettings, program_log, start_logging
from pillarbox.cli.serving import listeners_for, serving
from pillarbox.cli.stopping import stopping_on_signals
from pillarbox.config import Config, outbox_section, read_section
from pillarbox.message import State
from pillarbox.protocols import Store
from pillarbox.relay.configured import ConfiguredDestination, configured_store, relay_section, served_destinations
from pillarbox.relay.relay import Relay
from pillarbox.stores.opening import open_store
from pillarbox.stores.urls import StoreUrl
from pillarbox.telemetry import LoggingTelemetry, SeveralTelemetries

__all__ = ["relay"]

_EPILOG = """The first SIGTERM or SIGINT lets what is under way finish; the second ends the program at once.

\b
Example:
  pillarbox relay --store sqlite:///shop.db --to billing=https://billing.example/hooks
"""
_ONCE = "Deliver what can be delivered now, then end; with 1 if messages wait for a destination that is down or paused."


@click.command("relay", epilog=_EPILOG)
@configuration_options
@click.option("--http", metavar="HOST:PORT", envvar="PILLARBOX_HTTP", show_envvar=True,
              help="Serve /livez, /readyz and /metrics here.")  # fmt: skip
@click.option("--once", is_flag=True, envvar="PILLARBOX_ONCE", show_envvar=True, help=_ONCE)
def relay(config: Config, http: str | None, once: bool) -> None:
    """Deliver every committed message, in order per key, until stopped. Run as many as you like."""
    logs = read_section(config, LogSettings, at=("log",)).settings
    outbox_section(config)
    settings = relay_section(config).settings
    served = served_destinations(config)
    outages = Outages(deliveries=logs.deliveries)
    url, names = configured_store(config)
    store = open_store(url, names=names)
    listeners = [outages, *listeners_for(http)]
    relay = Relay(
        store, [one.destination() for one in served], settings=settings, telemetry=SeveralTelemetries(*listeners)
    )
    start_logging(logs)
    run = Run(relay=relay, store=store, outages=outages, introduced=lambda: _introduce(url, served))
    with (
        serving(http, relay, lambda: open_store(url, names=names, asks_only=True), listeners),
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
        stopping_on_signals(run.stop, loop=runner.get_loop()),
    ):
        waiting = runner.run(run.until_done(once=once))
    raise click.exceptions.Exit(1 if waiting else 0)


class Outages(LoggingTelemetry):
    """The log lines, and which destinations are down or paused."""

    def __init__(self, *, deliveries: int) -> None:
        super().__init__(deliveries=deliveries)
        self.down: set[str] = set()
        self.paused_ones: set[str] = set()

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        super().breaker_opened(destination, reason=reason, seconds=seconds)
        self.down.add(destination)

    def breaker_closed(self, destination: str) -> None:
        super().breaker_closed(destination)
        self.down.discard(destination)

    def paused(self, destination: str, *, reason: str) -> None:
        super().paused(destination, reason=reason)
        self.paused_ones.add(destination)

    def resumed(self, destination: str) -> None:
        super().resumed(destination)
        self.paused_ones.discard(destination)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the relay in this program."""

    relay: Relay
    store: Store
    outages: Outages
    introduced: Callable[[], None]

    def stop(self, why: str) -> None:
        """Finish gracefully, and say so."""
        program_log.info("%s: finishing what is under way; a second signal ends it at once", why)
        self.relay.stop()

    async def until_done(self, *, once: bool) -> int:
        """Deliver. Answers, of `once`, how many messages wait for a destination that is down or paused."""
        # A relay keeps trying when its store goes away. At the start a wrong URL is likelier: that ends the program.
        await self.store.open()
        await self.store.close()
        self.introduced()
        await self.relay.run(once=once)
        waiting = await self._waiting() if once else 0
        program_log.info("stopped")
        return waiting

    async def _waiting(self) -> int:
        away = self.outages.down | self.outages.paused_ones
        waiting = await _due(self.store, away) if away else 0
        if waiting:
            program_log.error("%d messages wait for what is down or paused: %s", waiting, ", ".join(sorted(away)))
        return waiting


async def _due(store: Store, destinations: set[str]) -> int:
    await store.open()
    try:
        counts = await store.counts()
    finally:
        await store.close()
    open_ones = (State.PENDING, State.SENDING)
    return sum(one.count for one in counts if one.due and one.state in open_ones and one.destination in destinations)


def _introduce(url: StoreUrl, served: Sequence[ConfiguredDestination]) -> None:
    places = {one.name: one.told.shown_url() for one in served}
    told = ", ".join(f"{name} ({place})" for name, place in places.items())
    fields = {"version": version("pillarbox"), "store": str(url), "destinations": places}
    program_log.info("pillarbox %s delivers from %s to %s", version("pillarbox"), url, told, extra=fields)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
