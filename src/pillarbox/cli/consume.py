"""`pillarbox consume`: run a consumer that a module has."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import click

from pillarbox.cli.logs import LogSettings, program_log, start_logging
from pillarbox.cli.stopping import stopping_on_signals
from pillarbox.config import Config, read_section
from pillarbox.consumer import Consumer
from pillarbox.errors import ConfigError

__all__ = ["consume"]

_EPILOG = """The first SIGTERM or SIGINT lets handlers that run end, and gives the rest back to the broker; the
second ends the program at once.

\b
Example:
  pillarbox consume shop.billing:consumer
"""


@click.command("consume", epilog=_EPILOG)
@click.argument("place", metavar="MODULE:CONSUMER")
@click.option("--config", metavar="FILE", envvar="PILLARBOX_CONFIG", show_envvar=True,
              help="For [log].  [default: pillarbox.toml in the current folder, if there is one]")  # fmt: skip
def consume(place: str, config: str | None) -> None:
    """Handle messages until stopped. CONSUMER is a Consumer, or a function without arguments that makes one."""
    start_logging(read_section(Config.load(config, flags={}), LogSettings, at=("log",)).settings)
    with asyncio.Runner() as runner:
        consumer = runner.run(_made(place))
        program_log.info("the consumer %s handles messages", consumer.name)

        def stop(why: str) -> None:
            program_log.info("%s: finishing what is under way; a second signal ends it at once", why)
            consumer.stop()

        with stopping_on_signals(stop, loop=runner.get_loop()):
            runner.run(consumer.run())
    program_log.info("stopped")


async def _made(place: str) -> Consumer:
    """Inside the loop that it will run in: pools and clients belong to one."""
    found = _found(place)
    if not isinstance(found, Consumer) and callable(found):
        found = found()
        if asyncio.iscoroutine(found):
            found = await found
    if not isinstance(found, Consumer):
        raise ConfigError(
            f"{place} is a {type(found).__name__}; it must be a pillarbox Consumer, or a function that makes one."
        )
    return found


def _found(place: str) -> object:
    module, _, attribute = place.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{place!r} does not name a consumer: write package.module:consumer.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The consumer {place} cannot be loaded: {error}.") from error
