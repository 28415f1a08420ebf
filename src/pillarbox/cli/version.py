"""`pillarbox version`: what is installed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from pillarbox.cli.output import OutputFormat, output_option, show, table

__all__ = ["show_version"]

_OPTIONAL: Final = ("aiohttp", "aiosqlite", "asyncpg", "psycopg", "rich", "SQLAlchemy", "uvloop")


@click.command("version", epilog="\b\nExample:\n  pillarbox version -o json\n")
@output_option
def show_version(output: OutputFormat) -> None:
    """Say which Pillarbox, Python and drivers are installed."""
    found = _versions()
    rows = [(name, number or "not installed") for name, number in found.items()]
    show(found, text=table(("package", "version"), rows), output=output)


def _versions() -> Mapping[str, str | None]:
    """Read from the installed packages' records: nothing is imported for it."""
    ours = {"pillarbox": version("pillarbox"), "python": platform.python_version()}
    return ours | {package: _installed(package) for package in _OPTIONAL}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
