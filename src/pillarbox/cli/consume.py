"""`pillarbox consume`: run a consumer that is defined in a module."""

from __future__ import annotations

import asyncio

import click

from pillarbox.cli._http import http_option, serve_health
from pillarbox.cli._logs import LogSettings, program_log, start_logging
from pillarbox.cli._signals import stop_on_signals
from pillarbox.config import Config, read_section
from pillarbox.consumer import Consumer
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.operations.health import ConsumerProbes, HealthApp, parse_address
from pillarbox.user_code import import_object

__all__ = ["consume"]

_EPILOG = """The first SIGTERM or SIGINT lets handlers that run end, and gives the rest back to the broker; the
second ends the program at once.

\b
Example:
  pillarbox consume shop.billing:consumer
"""


@click.command("consume", epilog=_EPILOG)
@click.argument("name", metavar="MODULE:CONSUMER")
@click.option("--config", metavar="FILE", envvar="PILLARBOX_CONFIG", show_envvar=True,
              help="For [log].  [default: pillarbox.toml in the current folder, if there is one]")  # fmt: skip
@http_option
def consume(name: str, config: str | None, http: str | None) -> None:
    """Handle messages until stopped. CONSUMER is a Consumer, or a function without arguments that makes one."""
    start_logging(read_section(Config.load(config, flags={}), LogSettings, at=("log",)).settings)
    address = None if http is None else parse_address(http)
    with asyncio.Runner() as runner:
        consumer = runner.run(_load(name))
        metrics = [] if address is None else _build_metrics()
        for one in metrics:
            consumer.observe(one)

        def stop(signal: str) -> None:
            program_log.info("%s: finishing what is under way; a second signal ends it at once", signal)
            consumer.stop()

        def build_app() -> HealthApp:
            return HealthApp(ConsumerProbes(consumer, loop=runner.get_loop()), collectors=metrics)

        with serve_health(address, build_app), stop_on_signals(stop, loop=runner.get_loop()):
            program_log.info("the consumer %s handles messages", consumer.name)
            runner.run(consumer.run())
    program_log.info("stopped")


def _build_metrics() -> list[ConsumerTelemetry]:
    """Build what counts for `/metrics`; nothing if the client library is missing."""
    try:
        from pillarbox.operations.prometheus import PrometheusConsumerTelemetry
    except MissingExtra:
        return []
    return [PrometheusConsumerTelemetry()]


async def _load(name: str) -> Consumer:
    """Import the consumer, or call the function that makes it.

    A coroutine, because the pools and clients that the function creates belong to the loop that runs then.
    """
    found = import_object(name, what="a consumer", example="package.module:consumer")
    if not isinstance(found, Consumer) and callable(found):
        found = found()
        if asyncio.iscoroutine(found):
            found = await found
    if not isinstance(found, Consumer):
        raise ConfigError(
            f"{name} is a {type(found).__name__}; it must be a pillarbox Consumer, or a function that makes one."
        )
    return found
