"""`pillarbox schema …`: install, change and check the tables. What prints SQL is in `schema_sql`."""

from __future__ import annotations

import asyncio
import sys

import click

from pillarbox.cli.output import OutputFormat, output_option, say, show
from pillarbox.cli.schema_sql import print_grants, print_sql
from pillarbox.cli.target import Target, target_options
from pillarbox.errors import SchemaMixed
from pillarbox.stores.migrations import Plan
from pillarbox.stores.schema import Schema, schema_at

__all__ = ["schema"]


@click.group(epilog="\b\nExample:\n  pillarbox schema install --store postgresql://app@127.0.0.1/shop --schema mail\n")
def schema() -> None:
    """Install, change, check and print the tables of a store."""


@schema.command(epilog="\b\nExample:\n  pillarbox schema install --store sqlite:///shop.db\n")
@target_options
@output_option
def install(target: Target, output: OutputFormat) -> None:
    """Create the tables. Fine when they are there already; older ones are left to `upgrade`."""
    _show_change(target, asyncio.run(_schema(target).install()), output)


@schema.command(epilog="\b\nExample:\n  pillarbox schema upgrade --store sqlite:///shop.db\n")
@click.option("--to", type=click.IntRange(min=1), metavar="VERSION", envvar="PILLARBOX_SCHEMA_TO", show_envvar=True,
              help="Stop at this version.  [default: the latest]")  # fmt: skip
@target_options
@output_option
def upgrade(target: Target, to: int | None, output: OutputFormat) -> None:
    """Bring the tables to this release's version, from nothing too."""
    _show_change(target, asyncio.run(_schema(target).upgrade(target=to)), output)


@schema.command(epilog="\b\nExample:\n  pillarbox schema downgrade --to 0 --yes --store sqlite:///shop.db\n")
@click.option("--to", type=click.IntRange(min=0), required=True, metavar="VERSION", envvar="PILLARBOX_SCHEMA_TO",
              show_envvar=True, help="0 removes everything.")  # fmt: skip
@click.option("--yes", is_flag=True, envvar="PILLARBOX_YES", show_envvar=True, help="Do not ask.")
@target_options
@output_option
def downgrade(target: Target, to: int, yes: bool, output: OutputFormat) -> None:
    """Take the tables back to an older version. What only the newer one can hold is lost."""
    tables = _schema(target)
    if not yes:
        _ask(target, current=asyncio.run(tables.version()), to=to)
    _show_change(target, asyncio.run(tables.downgrade(target=to)), output)


@schema.command(epilog="\b\nExample:\n  pillarbox schema verify --store sqlite:///shop.db\n")
@target_options
@output_option
def verify(target: Target, output: OutputFormat) -> None:
    """Check that the version fits, and that the tables are what it should have. Changes nothing."""
    found = asyncio.run(_schema(target).verify())
    lines = [str(difference) for difference in found]
    value = {"store": target.url.redacted, "fits": not found, "differences": found}
    show(value, text="\n".join(lines) or f"The tables in {target.url} are as they should be.", output=output)
    if found:
        places = "1 place" if len(found) == 1 else f"{len(found)} places"
        raise SchemaMixed(f"The tables differ from what their recorded version should have in {places}, listed above.")


schema.add_command(print_sql)
schema.add_command(print_grants)


def _schema(target: Target) -> Schema:
    return schema_at(target.url, names=target.names)


def _ask(target: Target, *, current: int, to: int) -> None:
    if current <= to:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("A downgrade can lose data and there is nobody to ask: add --yes if you mean it.")
    loss = "every table and every message" if to == 0 else "what only the newer version can hold"
    if not click.confirm(f"Take {target.url} from version {current} to {to}? This removes {loss}.", err=True):
        say("Nothing was changed.")
        raise click.exceptions.Exit(1)


def _show_change(target: Target, way: Plan, output: OutputFormat) -> None:
    steps = [f"{step.version:04}_{step.name}" for step in way.steps]
    value = {"store": target.url.redacted, "from": way.current, "to": way.target, "steps": steps}
    done = f"from version {way.current} to {way.target}" if steps else f"at version {way.target} already"
    show(value, text=f"Schema in {target.url}: {done}.", output=output)
