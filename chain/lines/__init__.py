"""The two ways from A to C. One more is one file with the shape of `http`, and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chain.lines import brokers, http
from chain.lines.line import Line

__all__ = ["LINES"]

LINES: Final[Mapping[str, Callable[[Path], AbstractContextManager[Line]]]] = MappingProxyType(
    {"brokers": brokers.line, "http": http.line}
)
"""By the name that people type. The folder is for files; all else that a line makes is removed at its end."""
