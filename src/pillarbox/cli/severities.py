"""What a program learns from the exit code of a command that judges."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pillarbox.protocols import Severity

__all__ = ["exit_code"]

_CODES: Final[Mapping[Severity | None, int]] = MappingProxyType(
    {None: 0, Severity.INFO: 0, Severity.WARNING: 6, Severity.CRITICAL: 7}
)


def exit_code(worst: Severity | None) -> int:
    """0 when nothing is wrong, or there is only something to know."""
    return _CODES[worst]
