"""The `pillarbox` program."""

from __future__ import annotations

import sys
from typing import NoReturn

from pillarbox.cli.app import pillarbox
from pillarbox.cli.failures import run

__all__ = ["main"]


def main() -> NoReturn:
    """Run the program with the process's arguments, and end with its exit code."""
    sys.exit(run(pillarbox, sys.argv[1:]))
