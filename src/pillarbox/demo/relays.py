"""The relays: `pillarbox relay`, with a lease so short that taking over from a dead one takes about a second."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pillarbox.demo.line import Line
from pillarbox.demo.orders import DESTINATION

__all__ = ["LEASE", "MODULE", "arguments", "settings"]

MODULE: Final = "pillarbox"
LEASE: Final = timedelta(seconds=1)
_BATCH: Final = 50
_WINDOW: Final = 100
"""Small: what a relay had in hand when it died comes under suspicion, and after two deaths goes one by one."""


def arguments() -> list[str]:
    """What the program is given. Store and destination come by the environment."""
    options = {"lease": f"{LEASE.total_seconds():g}s", "batch": _BATCH, "window": _WINDOW, "service": "demo"}
    return ["--debug", "relay", *(f"--{name}={value}" for name, value in options.items())]


def settings(line: Line) -> dict[str, str]:
    """What its environment says of the destination: there, because a broker's URL may hold a password."""
    return {f"PILLARBOX_DESTINATION_{DESTINATION.upper()}_URL": line.to}
