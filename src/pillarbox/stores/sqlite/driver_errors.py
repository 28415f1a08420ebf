"""SQLite's errors as ours, told once, with the cause kept."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pillarbox.errors import ConfigError, PillarboxError, SchemaMissing, StoreError, StoreUnavailable

__all__ = ["cannot_open", "mapped_errors"]

_PRIMARY: Final = 0xFF
"""The low byte of a result code is its family."""
_EFFECTIVE: Final = os.access in os.supports_effective_ids
_LOCKED: Final = (StoreUnavailable, "{path} stayed locked by another writer ({error}): look for a long transaction.")
_UNWRITABLE: Final = (
    StoreUnavailable,
    "{path} cannot be written ({error}): check the rights on the file and its folder.",
)
_BROKEN: Final = (StoreUnavailable, "{path} cannot be used now ({error}): check the disk; it will be tried again.")
_TOLD: Final[Mapping[int, tuple[type[PillarboxError], str]]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_FULL: _BROKEN,
    sqlite3.SQLITE_IOERR: _BROKEN,
    sqlite3.SQLITE_NOMEM: _BROKEN,
    sqlite3.SQLITE_PROTOCOL: _BROKEN,
    sqlite3.SQLITE_NOTADB: (ConfigError, "{path} is not an SQLite database: correct the path."),
    sqlite3.SQLITE_CORRUPT: (StoreError, "{path} is damaged ({error}): restore it from a backup."),
}


@contextmanager
def mapped_errors(path: Path) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _told(error, path) from error


def cannot_open(path: Path) -> ConfigError | None:
    """Why the path is not one to open, if so. SQLite would make a new file, or find out at the first write."""
    if path.is_file():
        return None if os.access(path, os.W_OK, effective_ids=_EFFECTIVE) else _read_only(path)
    if str(path) == ":memory:":
        return ConfigError("An SQLite store needs a file, which its writers share: use memory:// for one without.")
    if path.exists():
        return ConfigError(f"{path} is not a file: correct the path of the SQLite store.")
    return ConfigError(f"There is no SQLite file {path}: correct the path, or make it with `pillarbox schema install`.")


def _read_only(path: Path) -> ConfigError:
    return ConfigError(f"{path} cannot be written by this user: give it the right to write the file and its folder.")


def _told(error: sqlite3.Error, path: Path) -> PillarboxError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code in _TOLD:
        kind, sentence = _TOLD[code]
        return kind(sentence.format(path=path, error=error))
    if str(error).startswith("no such table"):
        return SchemaMissing(f"A table is missing in {path} ({error}): run `pillarbox schema install`.")
    return StoreError(f"SQLite refused it ({type(error).__name__}: {error}).")
