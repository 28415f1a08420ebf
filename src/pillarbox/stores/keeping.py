"""What a store keeps of a delivered message."""

from __future__ import annotations

from typing import Literal

from pillarbox.errors import ConfigError

__all__ = ["Keep", "check_keep"]

Keep = Literal["full", "no-payload", "off"]
"""All of it, all but its payload, or nothing."""


def check_keep(keep: str) -> None:
    """`ConfigError` for anything else."""
    if keep not in ("full", "no-payload", "off"):
        raise ConfigError(f"keep is {keep!r}: write 'full', 'no-payload' or 'off'.")
