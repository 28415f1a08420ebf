"""`pillarbox demo`: see it work while everything around it breaks."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import SystemRandom
from typing import TYPE_CHECKING

import click
import msgspec

from pillarbox.cli._output import echo, say
from pillarbox.cli.dashboard import show_login
from pillarbox.demo.scenario import Scenario
from pillarbox.operations.health import parse_address
from pillarbox.stores.factory import open_store

if TYPE_CHECKING:
    from pillarbox.demo.runner import Setup

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
@click.option("--dashboard", metavar="HOST:PORT", is_flag=False, flag_value="127.0.0.1:8471",
              envvar="PILLARBOX_DEMO_DASHBOARD", show_envvar=True,
              help="Show it in the browser meanwhile, at 127.0.0.1:8471, and afterwards until Ctrl-C.")  # fmt: skip
def demo(
    *,
    orders: int,
    seed: int | None,
    store: str | None,
    to: str | None,
    keep: bool,
    as_json: bool,
    dashboard: str | None,
) -> None:
    """Deliver orders while relays are killed, the consumer goes down and one message is poison.

    Ends with a result, and with exit code 1 unless nothing is lost, invented or out of order.
    """
    scenario = Scenario(orders=orders, seed=SystemRandom().randrange(1_000_000) if seed is None else seed)
    try:
        holds = asyncio.run(_run(scenario, store=store, to=to, keep=keep, as_json=as_json, dashboard=dashboard))
    except asyncio.CancelledError:
        raise click.Abort from None
    raise click.exceptions.Exit(0 if holds else 1)


async def _run(
    scenario: Scenario, *, store: str | None, to: str | None, keep: bool, as_json: bool, dashboard: str | None
) -> bool:
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
        with _serve_dashboard(dashboard, setup, as_json=as_json), display(title, say=say) as screen:
            outcome = await run_demo(scenario, setup, screen)
        text = msgspec.json.encode(outcome.result).decode() if as_json else format_report(outcome, setup, kept=keep)
        echo(text)
        if dashboard is not None:
            with _serve_dashboard(dashboard, setup, as_json=as_json):
                say("The dashboard stays until Ctrl-C.")
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
    return outcome.result.holds


@contextmanager
def _serve_dashboard(address: str | None, setup: Setup, *, as_json: bool) -> Iterator[None]:
    """Show the demo's store in the browser while the block runs."""
    if address is None:
        yield
        return
    from pillarbox.dashboard import Dashboard, StoreSource
    from pillarbox.dashboard.access import check_bind
    from pillarbox.dashboard.login import UrlLogin
    from pillarbox.dashboard.serve import BackgroundServer

    login = UrlLogin("you")
    host, port = parse_address(address)
    check_bind(host, is_protected=False)

    def build() -> Dashboard:
        store = open_store(setup.store.url, names=setup.store.names)
        source = StoreSource("shop", store, label=str(setup.store.url))
        return Dashboard({"shop": source}, authorize=login, environment="demo")

    server = BackgroundServer(build, host=host, port=port)
    server.start()
    say(f"The dashboard is at {server.address}")
    show_login(login, server.address, show=say if as_json else echo)  # stdout is for the result alone
    try:
        yield
    finally:
        server.stop()
