"""`pillarbox version`: the versions of Pillarbox, Python and the drivers."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import click

from pillarbox.cli._output import OutputFormat, output_option, show
from pillarbox.cli._table import draw_table, wide_option

__all__ = ["version"]

_OPTIONAL: Final = ("aiohttp", "aiosqlite", "asyncpg", "psycopg", "rich", "SQLAlchemy", "uvloop")


@click.command(epilog="\b\nExample:\n  pillarbox version -o json\n")
@wide_option
@output_option
def version(output: OutputFormat) -> None:
    """Say which Pillarbox, Python and drivers are installed."""
    versions: dict[str, str | None] = {
        "pillarbox": metadata.version("pillarbox"),
        "python": platform.python_version(),
        **{package: _find_version(package) for package in _OPTIONAL},
    }
    rows = [(name, number or "not installed") for name, number in versions.items()]
    show(versions, text=draw_table(("package", "version"), rows), output=output)


def _find_version(package: str) -> str | None:
    # From the package's metadata: importing a driver takes long, and one that is broken would end the program.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
