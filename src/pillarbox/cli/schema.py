"""`pillarbox schema`: install, change, check and print the tables of a store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, output_option, say, show
from pillarbox.errors import ConfigError, SchemaMixed
from pillarbox.stores.factory import Schema, open_schema
from pillarbox.stores.mariadb.grants import grants as mariadb_grants
from pillarbox.stores.migrations import Plan, build_script, load_migrations
from pillarbox.stores.postgres.grants import Role, build_portable_grants
from pillarbox.stores.postgres.grants import build_grants as postgres_grants
from pillarbox.stores.postgres.portable.tables import build_portable

__all__ = ["schema"]

_SQL_EPILOG = """\b
Example:
  pillarbox schema sql --store postgresql:// --schema mail | psql -v ON_ERROR_STOP=1
"""
_GRANTS_EPILOG = """\b
Example:
  pillarbox schema grants --store postgresql:// --writer shop --relay shop_relay | psql -v ON_ERROR_STOP=1
"""


@click.group(epilog="\b\nExample:\n  pillarbox schema install --store postgresql://app@127.0.0.1/shop --schema mail\n")
def schema() -> None:
    """Install, change, check and print the tables of a store."""


_lookups_option = click.option(
    "--lookups/--no-lookups", default=None, envvar="PILLARBOX_SCHEMA_LOOKUPS", show_envvar=True,
    help="PostgreSQL: create or drop the indexes that find closed messages by message id, correlation id and age. "
    "Every delivery pays for them.  [default: as they are; new tables have them]",
)  # fmt: skip


@schema.command(epilog="\b\nExample:\n  pillarbox schema install --store sqlite:///shop.db\n")
@_lookups_option
@target_options
@output_option
def install(target: Target, lookups: bool | None, output: OutputFormat) -> None:
    """Create the tables. Fine when they are there already; older ones are left to `upgrade`."""
    tables = _open_schema(target, lookups=lookups)
    with _explain_interrupt("install"):
        plan, changed = asyncio.run(_change(tables, tables.install, lookups=lookups))
    _show_change(target, plan, output, lookups=changed)


@schema.command(epilog="\b\nExample:\n  pillarbox schema upgrade --store sqlite:///shop.db\n")
@click.option("--to", type=click.IntRange(min=1), metavar="VERSION", envvar="PILLARBOX_SCHEMA_TO", show_envvar=True,
              help="Stop at this version.  [default: the latest]")  # fmt: skip
@_lookups_option
@target_options
@output_option
def upgrade(target: Target, to: int | None, lookups: bool | None, output: OutputFormat) -> None:
    """Bring the tables to this release's version, from nothing too."""
    tables = _open_schema(target, lookups=lookups)
    with _explain_interrupt("upgrade"):
        plan, changed = asyncio.run(_change(tables, lambda: tables.upgrade(target=to), lookups=lookups))
    _show_change(target, plan, output, lookups=changed)


@schema.command(epilog="\b\nExample:\n  pillarbox schema downgrade --to 0 --yes --store sqlite:///shop.db\n")
@click.option("--to", type=click.IntRange(min=0), required=True, metavar="VERSION", envvar="PILLARBOX_SCHEMA_TO",
              show_envvar=True, help="0 removes everything.")  # fmt: skip
@click.option("--yes", is_flag=True, envvar="PILLARBOX_YES", show_envvar=True, help="Do not ask.")
@target_options
@output_option
def downgrade(target: Target, to: int, yes: bool, output: OutputFormat) -> None:
    """Take the tables back to an older version. What only the newer one can hold is lost."""
    tables = _open_schema(target)
    if not yes:
        _confirm_downgrade(target, current=asyncio.run(tables.version()), to=to)
    with _explain_interrupt("downgrade"):
        plan = asyncio.run(tables.downgrade(target=to))
    _show_change(target, plan, output)


@schema.command(epilog="\b\nExample:\n  pillarbox schema verify --store sqlite:///shop.db\n")
@target_options
@output_option
def verify(target: Target, output: OutputFormat) -> None:
    """Check that the version fits, and that the tables are what it should have. Changes nothing."""
    found = asyncio.run(_open_schema(target).verify())
    lines = [str(difference) for difference in found]
    value = {"store": target.url.redacted, "fits": not found, "differences": found}
    show(value, text="\n".join(lines) or f"The tables in {target.url} are as they should be.", output=output)
    if found:
        places = "1 place" if len(found) == 1 else f"{len(found)} places"
        raise SchemaMixed(f"The tables differ from what their recorded version should have in {places}, listed above.")


def _open_schema(target: Target, *, lookups: bool | None = None) -> Schema:
    if lookups is not None and target.url.scheme != "postgresql":
        raise ConfigError(
            f"A {target.url.scheme} store always has its indexes for lookups; leave out --lookups and --no-lookups."
        )
    return open_schema(target.url, names=target.names, report=say)


@contextmanager
def _explain_interrupt(command: str) -> Iterator[None]:
    """Say that a change which is interrupted can be repeated: each step is done wholly, or begun and repeated."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(
            "Steps that were finished stay done. Run `pillarbox schema "
            f"{command}` again: it goes on where this ended; `pillarbox schema verify` says what the tables are."
        )
        raise


def _is_portable(target: Target) -> bool:
    return target.url.options.get("dialect") == "portable"


async def _change(
    tables: Schema, change: Callable[[], Awaitable[Plan]], *, lookups: bool | None
) -> tuple[Plan, Sequence[str]]:
    """Change the tables, then the optional indexes, unless these stay as they are."""
    plan = await change()
    return plan, () if lookups is None else await tables.change_lookups(wanted=lookups)


def _confirm_downgrade(target: Target, *, current: int, to: int) -> None:
    if current <= to:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("A downgrade can lose data and there is nobody to ask: add --yes if you mean it.")
    loss = "every table and every message" if to == 0 else "what only the newer version can hold"
    if not click.confirm(f"Take {target.url} from version {current} to {to}? This removes {loss}.", err=True):
        say("Nothing was changed.")
        raise click.exceptions.Exit(1)


def _show_change(target: Target, plan: Plan, output: OutputFormat, *, lookups: Sequence[str] = ()) -> None:
    steps = [f"{step.version:04}_{step.name}" for step in plan.steps]
    value = {"store": target.url.redacted, "from": plan.current, "to": plan.target, "steps": steps,
             "lookups": lookups}  # fmt: skip
    done = f"from version {plan.current} to {plan.target}" if steps else f"at version {plan.target} already"
    changed = f" Changed indexes: {', '.join(lookups)}." if lookups else ""
    show(value, text=f"Schema in {target.url}: {done}.{changed}", output=output)


# --- SQL, without a connection ---


@schema.command("sql", epilog=_SQL_EPILOG)
@click.option("--from", "start", type=click.IntRange(min=0), default=0, show_default=True, metavar="VERSION",
              envvar="PILLARBOX_SCHEMA_FROM", show_envvar=True,
              help="The version that is there; 0 is none.")  # fmt: skip
@click.option("--to", "end", type=click.IntRange(min=0), metavar="VERSION", envvar="PILLARBOX_SCHEMA_TO",
              show_envvar=True, help="[default: the latest]")  # fmt: skip
@click.option("--down", is_flag=True, envvar="PILLARBOX_SCHEMA_DOWN", show_envvar=True,
              help="Print the way back instead: from --to down to --from.")  # fmt: skip
@target_options
@output_option
def print_sql(target: Target, start: int, end: int | None, down: bool, output: OutputFormat) -> None:
    """Print the SQL that makes or changes the tables, without connecting."""
    migrations = build_portable(load_migrations("postgresql")) if _is_portable(target) else None
    text = build_script(target.url.scheme, names=target.names, start=start, end=end, down=down, migrations=migrations)
    show({"sql": text}, text=text, output=output)


@schema.command("grants", epilog=_GRANTS_EPILOG)
@click.option("--writer", metavar="ROLE", envvar="PILLARBOX_GRANTS_WRITER", show_envvar=True,
              help="Adds messages; can neither read nor change one.")  # fmt: skip
@click.option("--consumer", metavar="ROLE", envvar="PILLARBOX_GRANTS_CONSUMER", show_envvar=True,
              help="A writer that also keeps the inbox of the consumers named by --inbox.")  # fmt: skip
@click.option("--inbox", "consumers", metavar="CONSUMER", multiple=True, envvar="PILLARBOX_GRANTS_INBOX",
              show_envvar=True,
              help="A consumer whose inbox the consumer's role keeps, and no other; '*' is every one.")  # fmt: skip
@click.option("--relay", metavar="ROLE", envvar="PILLARBOX_GRANTS_RELAY", show_envvar=True,
              help="Delivers; can neither forge nor change a message.")  # fmt: skip
@click.option("--operator", metavar="ROLE", envvar="PILLARBOX_GRANTS_OPERATOR", show_envvar=True,
              help="A relay that also redrives, replays and discards.")  # fmt: skip
@click.option("--viewer", metavar="ROLE", envvar="PILLARBOX_GRANTS_VIEWER", show_envvar=True,
              help="Sees everything but payloads.")  # fmt: skip
@target_options
@output_option
def print_grants(
    target: Target,
    *,
    writer: str | None,
    consumer: str | None,
    consumers: Sequence[str],
    relay: str | None,
    operator: str | None,
    viewer: str | None,
    output: OutputFormat,
) -> None:
    """Print the GRANTs that give database roles the least they need, without connecting. Not for SQLite."""
    build_grants = {"postgresql": postgres_grants, "mysql": mariadb_grants}.get(target.url.scheme)
    if build_grants is None:
        raise ConfigError(
            f"A {target.url.scheme} store has no roles; grants are for postgresql:// and mysql:// stores."
        )
    roles: dict[Role, str | None] = {
        "writer": writer, "consumer": consumer, "relay": relay, "operator": operator, "viewer": viewer,
    }  # fmt: skip
    if consumer is not None and not consumers:
        raise click.UsageError(
            "Which consumers is that role for? Without names it could change the inbox of every consumer: add "
            "--inbox CONSUMER for each one, or --inbox '*' if the role may be all of them."
        )
    if _is_portable(target):
        build_grants = build_portable_grants
    named = {role: name for role, name in roles.items() if name is not None}
    text = build_grants(named, names=target.names, consumers=None if "*" in consumers else consumers)
    show({"sql": text}, text=text, output=output)
