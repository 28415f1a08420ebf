"""The file: found, read, and laid out flat."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

from pillarbox.errors import ConfigError

__all__ = ["FILE_NAME", "chosen_file", "flattened", "read_toml"]

FILE_NAME: Final = "pillarbox.toml"
"""What the file is called in the current folder."""


def chosen_file(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> FilePath | None:
    """The file that was asked for, or else the one in the current folder, if there is one."""
    asked = os.fspath(path) if path is not None else environ.get("PILLARBOX_CONFIG")
    if asked:
        return FilePath(asked)
    here = FilePath(FILE_NAME)
    return here if here.exists() else None


def read_toml(file: FilePath) -> dict[str, Any]:
    """The tables of the file, or one sentence that says why there are none."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not TOML: {_lowered(str(error))}.") from error


def flattened(table: Mapping[str, object], *, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value in a table and the tables inside it, with its path. Lists are values, empty tables are nothing."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, at=(*at, name))
        else:
            yield (*at, name), value


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
