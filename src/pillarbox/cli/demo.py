"""`pillarbox demo`: see it work while everything around it breaks."""

from __future__ import annotations

import asyncio
import logging
import signal
from random import SystemRandom

import click
import msgspec

from pillarbox.cli._output import echo, say
from pillarbox.demo.scenario import Scenario

__all__ = ["demo"]

_EPILOG = """\b
Example:
  pillarbox demo --orders 1000
"""


@click.command(epilog=_EPILOG)
@click.option("--orders", type=click.IntRange(min=10), default=2_000, show_default=True, metavar="N",
              envvar="PILLARBOX_DEMO_ORDERS", show_envvar=True, help="How many orders are committed.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), metavar="N", envvar="PILLARBOX_DEMO_SEED", show_envvar=True,
              help="Seed of the scenario.  [default: another each time]")  # fmt: skip
@click.option("--store", metavar="URL", envvar="PILLARBOX_DEMO_STORE", show_envvar=True,
              help="Store of the orders.  [default: an SQLite file of its own]")  # fmt: skip
@click.option(
    "--to",
    metavar="URL",
    envvar="PILLARBOX_DEMO_TO",
    show_envvar=True,
    help="Deliver over http://127.0.0.1:PORT, amqp://…, nats://… or redis://….  [default: HTTP at a free port]",
)
@click.option("--keep", is_flag=True, envvar="PILLARBOX_DEMO_KEEP", show_envvar=True,
              help="Keep the files and databases.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, envvar="PILLARBOX_DEMO_JSON", show_envvar=True,
              help="Print the result as one line of JSON.")  # fmt: skip
def demo(*, orders: int, seed: int | None, store: str | None, to: str | None, keep: bool, as_json: bool) -> None:
    """Deliver orders while relays are killed, the consumer goes down and one message is poison.

    Ends with a result, and with exit code 1 unless nothing is lost, invented or out of order.
    """
    scenario = Scenario(orders=orders, seed=SystemRandom().randrange(1_000_000) if seed is None else seed)
    try:
        holds = asyncio.run(_run(scenario, store=store, to=to, keep=keep, as_json=as_json))
    except asyncio.CancelledError:
        raise click.Abort from None
    raise click.exceptions.Exit(0 if holds else 1)


async def _run(scenario: Scenario, *, store: str | None, to: str | None, keep: bool, as_json: bool) -> bool:
    from pillarbox.demo.report import display, format_report
    from pillarbox.demo.runner import run_demo, set_up
    from pillarbox.demo.target import parse_target

    # What a broker's client logs on the way to an error would stand above the sentence that says it.
    logging.getLogger().addHandler(logging.NullHandler())
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with set_up(store, target=parse_target(to), keep=keep) as setup:
        route = f"from {setup.store.url.scheme} over {setup.target.kind}"
        title = f"Pillarbox demo: {scenario.orders} orders {route}, seed {scenario.seed}"
        with display(title, say=say) as screen:
            outcome = await run_demo(scenario, setup, screen)
        text = msgspec.json.encode(outcome.result).decode() if as_json else format_report(outcome, setup, kept=keep)
        echo(text)
    return outcome.result.holds
