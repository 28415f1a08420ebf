"""Archive of closed messages in files: JSON Lines, by day, compressed. Nothing is deleted that it did not take."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from pillarbox.errors import ArchiveError
from pillarbox.message import Message

__all__ = ["Archive", "JsonLinesArchive", "read_archive"]

Archive = Callable[[Sequence[Message]], Awaitable[None]]
"""Receives messages before they are deleted. If it raises, none of them is deleted."""

_SUFFIX: Final = ".jsonl.gz"
_PARTIAL: Final = ".partial"
_MODE: Final = 0o600
"""Payloads may be secret: only the owner reads them."""


class JsonLinesArchive:
    """Writes each batch to a new file below the day on which its messages were closed: `2026-11-17/….jsonl.gz`.

    A file appears under its name only when it is whole and on disk. A batch that is archived again after a crash is
    in two files; `message_id` and `destination` tell that it is the same.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    async def __call__(self, messages: Sequence[Message]) -> None:
        """Write these messages durably. Raises `ArchiveError` where that is not possible."""
        try:
            await asyncio.to_thread(self._write, messages)
        except OSError as error:
            raise ArchiveError(
                f"The archive {self._folder} cannot be written ({error.strerror or type(error).__name__}): nothing is "
                "deleted. Make room or correct its rights, or set another folder."
            ) from error

    def _write(self, messages: Sequence[Message]) -> None:
        days: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            days[f"{message.status_at or message.event_time:%Y-%m-%d}"].append(message)
        for day, closed in days.items():
            folder = self._folder / day
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"{closed[0].id}-{closed[-1].id}-{uuid4().hex[:12]}"
            _write_file(folder / f"{name}{_SUFFIX}", closed)
            _sync_folder(folder)
        _sync_folder(self._folder)


def _write_file(path: Path, messages: Sequence[Message]) -> None:
    """Write a file under another name, flush it to disk, and rename it. Leaves nothing behind if that fails."""
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                for message in messages:
                    packed.write(msgspec.json.encode(message) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where folders can be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_archive(folder: str | os.PathLike[str]) -> Iterator[Message]:
    """Read every message of an archive, day by day, each once even if it was archived twice."""
    seen: set[tuple[str, str]] = set()
    decode = msgspec.json.Decoder(Message).decode
    for path in sorted(Path(folder).glob(f"*/*{_SUFFIX}")):
        with gzip.open(path, "rb") as lines:
            for line in lines:
                message = decode(line)
                if (identity := (str(message.message_id), message.destination)) not in seen:
                    seen.add(identity)
                    yield message
