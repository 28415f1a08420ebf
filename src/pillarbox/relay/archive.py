"""Archive of closed messages in files: JSON Lines, by day, compressed. Nothing is deleted that it did not take."""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Final, Self, cast
from uuid import uuid4

import msgspec

from pillarbox.errors import ArchiveError, ConfigError, PublishError
from pillarbox.message import MAX_NAME, MAX_TEXT, Message, check_destination, check_text
from pillarbox.stores.unreadable import is_sound, is_text

__all__ = ["Archive", "ArchivedLine", "JsonLinesArchive", "list_files", "read_archive", "read_lines"]

Archive = Callable[[Sequence[Message]], Awaitable[None]]
"""Receives messages before they are deleted. If it raises, none of them is deleted."""

_SUFFIX: Final = ".jsonl.gz"
_PARTIAL: Final = ".partial"
_MODE: Final = 0o600
"""Payloads may be secret: only the owner reads them."""
_NAMES: Final = ("*.jsonl.gz", "*.jsonl")
_GZIP: Final = b"\x1f\x8b"
_LONGEST_LINE: Final = 64 * 1024 * 1024
"""Bytes of a line that can be a message. A file that is no archive may have no end of line at all."""
_MOST_LINES: Final = 5_000_000
"""Lines of a file. The archive itself writes a file for each batch."""
_MOST_GROWTH: Final = 100
"""A file may unpack to so many times its size. Messages shrink to a tenth; a file of zeros to a thousandth."""
_SMALL: Final = 64 * 1024 * 1024
"""Bytes to which any file may unpack, however small it is."""


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
    """Read every message of an archive, day by day, each once even if it was archived twice.

    Raises `ArchiveError` for a file that unpacks to much more than an archive does.
    """
    seen: set[tuple[str, str]] = set()
    decode = msgspec.json.Decoder(Message).decode
    for path in sorted(Path(folder).glob(f"*/*{_SUFFIX}")):
        with _Lines(path) as lines:
            while line := lines.read():
                message = decode(line)
                if (identity := (str(message.message_id), message.destination)) not in seen:
                    seen.add(identity)
                    yield message


# --- files that may be damaged ---


class ArchivedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of an archive's file: a closed message, or the reason why it is none."""

    file: str
    number: int
    """Counted from 1."""
    message: Message | None = None
    problem: str | None = None
    size: int = 0
    """Bytes of the line."""


def list_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """List the files of an archive, in order. A folder stands for all JSON Lines files in it and below."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(file for name in _NAMES for file in path.rglob(name)) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def read_lines(path: str | os.PathLike[str]) -> Iterator[ArchivedLine]:
    """Read a file line by line, compressed or not. A line that is no closed message says why, and stops no other.

    Where the file cannot be read on, because it ends early or is damaged, the last line says so.
    """
    file, number = str(path), 0
    try:
        with _Lines(Path(path)) as lines:
            while line := lines.read():
                number += 1
                is_whole = line.endswith(b"\n")
                if len(line) == _LONGEST_LINE and not is_whole:
                    lines.skip()
                    yield ArchivedLine(file=file, number=number, problem="it is too long to be a message")
                elif line.strip():
                    yield _read_line(line, file=file, number=number, is_whole=is_whole)
    except ArchiveError as error:
        yield ArchivedLine(file=file, number=number + 1, problem=f"the file is not read from here on: {error}")
    except EOFError:
        yield ArchivedLine(file=file, number=number + 1, problem="the file ends here, in the middle: it was cut off")
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        yield ArchivedLine(file=file, number=number + 1, problem=f"the file cannot be read from here on: {reason}")


class _Lines:
    """Lines of a file, compressed or not by what is in it: a name can be changed. Bounds what it may unpack to.

    Raises `ArchiveError` where a bound is passed: a few kilobytes can unpack to terabytes.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            is_compressed = file.read(2) == _GZIP
        opened = gzip.open if is_compressed else open
        self._file = cast("BufferedReader", opened(path, "rb"))
        self._left = max(_SMALL, _MOST_GROWTH * path.stat().st_size) if is_compressed else None
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> bytes:
        """Return the next line, or its beginning if it is too long; nothing at the end."""
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise ArchiveError(f"it has more than {_MOST_LINES:,} lines: split it into several files.")
        return self._read()

    def skip(self) -> None:
        """Skip the rest of a line that is too long."""
        while (rest := self._read()) and not rest.endswith(b"\n"):
            pass

    def _read(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE if self._left is None else min(_LONGEST_LINE, self._left + 1))
        if self._left is not None:
            self._left -= len(line)
            if self._left < 0:
                raise ArchiveError(
                    f"it unpacks to more than {_MOST_GROWTH} times its size, as no message does: if it is an archive "
                    "all the same, unpack it with gunzip, and restore that file."
                )
        return line


_TEXTS: Final = {
    "type": MAX_NAME, "topic": MAX_NAME, "content_type": MAX_NAME, "source": MAX_TEXT, "key": MAX_TEXT,
    "subject": MAX_TEXT, "correlation_id": MAX_TEXT, "causation_id": MAX_TEXT,
}  # fmt: skip
_decode_line = msgspec.json.Decoder(Message).decode


def _read_line(line: bytes, *, file: str, number: int, is_whole: bool) -> ArchivedLine:
    message: Message | None = None
    try:
        message = _decode_line(line)
        problem = _find_problem(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        reason = str(error).replace("`", "").rstrip(".") if isinstance(error, msgspec.ValidationError) else "no JSON"
        problem = f"it is no message ({reason})" if is_whole else "it was cut off"
    except (PublishError, ConfigError) as error:
        problem = f"it breaks a rule of messages: {error}"
    if problem is not None:
        return ArchivedLine(file=file, number=number, problem=problem)
    return ArchivedLine(file=file, number=number, message=message, size=len(line))


def _find_problem(message: Message) -> str | None:
    """Return why history cannot take a message; None if it can. Raises `PublishError` or `ConfigError` for a text."""
    if message.unreadable is not None:
        return f"the row could not be read when it was archived ({message.unreadable})"
    if not message.state.is_closed:
        return f"the message is {message.state.value}, and history has closed ones alone"
    if not 0 < message.id < 2**63:
        return f"{message.id} is no id of a message"
    times = (message.event_time, message.created_at, message.status_at)
    if any(at is None or at.tzinfo is None for at in times):
        return "a time is missing, or has no time zone"
    if message.available_at is not None and message.available_at.tzinfo is None:
        return "a time has no time zone"
    if message.last_error is not None and not (is_text(message.last_error) and "\0" not in message.last_error):
        return "its last error is no text"
    check_destination(message.destination)
    for name, limit in _TEXTS.items():
        if (text := getattr(message, name)) is not None:
            check_text(text, what=name, limit=limit)
    return None if is_sound(message) else "the partition is not that of its key, or a count is none"
