"""The `pillarbox` program: a file for each command, named as it is typed. Files with an underscore are shared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from pillarbox.cli._errors import run
from pillarbox.cli._program import pillarbox

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program with these arguments, by default the process's, and exit with its code."""
    sys.exit(run(pillarbox, sys.argv[1:] if arguments is None else arguments))
