"""The consumer, a process of its own: takes orders off the line and applies each once."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.demo.intakes import intake_of
from pillarbox.demo.ledger import Ledger
from pillarbox.demo.line import Line

__all__ = ["MODULE", "arguments", "settings"]

MODULE: Final = "pillarbox.demo.consumer"
_LINE: Final = "PILLARBOX_DEMO_LINE"


def arguments(*, ledger: Path) -> list[str]:
    """What this program is given."""
    return [str(ledger)]


def settings(line: Line) -> dict[str, str]:
    """What its environment says: there, because a broker's URL may hold a password."""
    return {_LINE: msgspec.json.encode(line).decode()}


def main(ledger: str) -> None:
    line = msgspec.json.decode(os.environ[_LINE], type=Line)
    asyncio.run(intake_of(line).serve(Ledger(Path(ledger))))


if __name__ == "__main__":
    main(*sys.argv[1:])
