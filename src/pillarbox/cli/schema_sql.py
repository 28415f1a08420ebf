"""`pillarbox schema sql` and `grants`: print SQL, connect to nothing, import no driver."""

from __future__ import annotations

import click

from pillarbox.cli.output import OutputFormat, output_option, show
from pillarbox.cli.target import Target, target_options
from pillarbox.errors import ConfigError
from pillarbox.stores.mariadb.grants import grants as mariadb_grants
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.postgres.grants import grants as postgres_grants
from pillarbox.stores.scripts import script

__all__ = ["print_grants", "print_sql"]

_SQL_EPILOG = """\b
Example:
  pillarbox schema sql --store postgresql:// --schema mail | psql -v ON_ERROR_STOP=1
"""
_GRANTS_EPILOG = """\b
Example:
  pillarbox schema grants --store postgresql:// --writer shop --relay shop_relay | psql -v ON_ERROR_STOP=1
"""


@click.command("sql", epilog=_SQL_EPILOG)
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
    text = script(target.url.scheme, names=target.names, start=start, end=end, down=down)
    show({"sql": text}, text=text, output=output)


@click.command("grants", epilog=_GRANTS_EPILOG)
@click.option("--writer", metavar="ROLE", envvar="PILLARBOX_GRANTS_WRITER", show_envvar=True,
              help="Adds messages; can neither read nor change one.")  # fmt: skip
@click.option("--consumer", metavar="ROLE", envvar="PILLARBOX_GRANTS_CONSUMER", show_envvar=True,
              help="A writer that also keeps the inbox.")  # fmt: skip
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
    relay: str | None,
    operator: str | None,
    viewer: str | None,
    output: OutputFormat,
) -> None:
    """Print the GRANTs that give database roles the least they need, without connecting. Not for SQLite."""
    granted = {"postgresql": postgres_grants, "mysql": mariadb_grants}.get(target.url.scheme)
    if granted is None:
        raise ConfigError(
            f"A {target.url.scheme} store has no roles; grants are for postgresql:// and mysql:// stores."
        )
    given: dict[Role, str | None] = {
        "writer": writer, "consumer": consumer, "relay": relay, "operator": operator, "viewer": viewer,
    }  # fmt: skip
    text = granted({role: name for role, name in given.items() if name is not None}, names=target.names)
    show({"sql": text}, text=text, output=output)
