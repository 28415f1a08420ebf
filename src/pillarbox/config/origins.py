"""What was said, and by whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["DEFAULT", "Given", "Layer", "Origin", "Path", "key_text"]

Path: TypeAlias = tuple[str, ...]
"""Where a value stands: `("relay", "retention", "failed")`."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class Origin(msgspec.Struct, frozen=True):
    """Who gave a value: the default, the file, the environment or a flag; `where` is its name there."""

    kind: Literal["default", "file", "environment", "flag"]
    where: str = ""

    def of(self, path: Path) -> str:
        """What to call a value in a sentence."""
        return f"{key_text(path)} in {self.where}" if self.kind == "file" else self.where


DEFAULT: Final = Origin("default")


class Given(msgspec.Struct, frozen=True):
    """A value as it was written, and by whom."""

    value: object
    origin: Origin


Layer: TypeAlias = Mapping[Path, Given]
"""All that one source says. Paths are relative to the section that is being read."""


def key_text(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)
