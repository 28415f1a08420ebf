"""All that was said, by the file, the environment and flags. Later ones win."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import msgspec

from pillarbox.config.files import FILE_NAME, chosen_file, flattened, read_toml
from pillarbox.config.nearest import nearest
from pillarbox.config.origins import Given, Layer, Origin, Path
from pillarbox.errors import ConfigError

__all__ = ["SECTIONS", "Config"]

SECTIONS: Final = ("store", "outbox", "relay", "log", "alerts", "destinations")
"""The tables of the file. A new one must be given its place here."""
_NOTHING: Final[Layer] = MappingProxyType({})


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the file, the environment and flags say, before anybody asked what it means.

    Nothing of it is shown: `environ` and `file` may hold secrets.
    """

    file: Mapping[str, Mapping[str, object]] = {}
    file_name: str = FILE_NAME
    found: bool = False
    """Whether there is a file."""
    environ: Mapping[str, str] = {}
    flags: Layer = _NOTHING

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        flags: Layer = _NOTHING,
    ) -> Self:
        """Read the file at `path`, or the one that PILLARBOX_CONFIG names, or `pillarbox.toml` here if there is one."""
        file = chosen_file(path, environ)
        if file is None:
            return cls(environ=dict(environ), flags=flags)
        tables = read_toml(file)
        for name, table in tables.items():
            if name not in SECTIONS:
                raise ConfigError(f"{file} has an unknown key {name}: {nearest(name, SECTIONS)}.")
            if not isinstance(table, dict):
                raise ConfigError(f"{name} in {file} must be a table: write [{name}] and its keys below.")
        return cls(file=tables, file_name=str(file), found=True, environ=dict(environ), flags=flags)

    def said_by_file(self, at: Path) -> Layer:
        """What the file says in a table."""
        table: object = self.file
        for name in at:
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        origin = Origin("file", self.file_name)
        inside = flattened(table) if isinstance(table, Mapping) else ()
        return {path: Given(value, origin) for path, value in inside}

    def said_by_flags(self, at: Path) -> Layer:
        """What flags say about a table."""
        return {path[len(at) :]: given for path, given in self.flags.items() if path[: len(at)] == at}

    def __repr__(self) -> str:
        return f"Config({self.file_name!r})"
