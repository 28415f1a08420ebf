"""Restore of archived messages into history: checked line by line, in batches, and harmless to repeat."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from pillarbox.contracts.store import Action, OperatorStore, Selection
from pillarbox.errors import StoreRefused
from pillarbox.message import Message, State
from pillarbox.operations.bulk import BATCH_SIZE, format_count
from pillarbox.relay.archive import ArchivedLine, list_files, read_lines
from pillarbox.stores.rules import matches, select_missing

__all__ = ["Problem", "RestoreResult", "restore_archive", "scan_archive"]

_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the lines of one transaction. The message that reaches it may pass it."""
_MAX_PROBLEMS: Final = 1_000
"""Problems that are kept. The others are counted."""
_MANY: Final = 1_000_000
"""More messages than a batch can have at all its destinations."""

_EVERYTHING: Final = Selection()

Paths: TypeAlias = Iterable[str | os.PathLike[str]]


class Problem(msgspec.Struct, frozen=True):
    """Line of an archive that was not restored."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class RestoreResult(msgspec.Struct, kw_only=True):
    """What was found in an archive, and what became of it."""

    files: int = 0
    matched: dict[State, int] = {}
    """Messages that the selection matches, by state. One that was archived twice counts twice."""
    restored: int = 0
    """Messages that were not there. In a dry run, that would be restored."""
    known: int = 0
    """Messages that were there already."""
    problems: list[Problem] = []
    """Lines that are no message, or that the store refuses. The first of them."""
    problem_count: int = 0

    def add_problem(self, line: ArchivedLine, reason: str) -> None:
        """Count a problem, and keep it if there are not too many."""
        self.problem_count += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(line.file, line.number, reason))


def scan_archive(paths: Paths, *, selection: Selection = _EVERYTHING) -> RestoreResult:
    """Read files, or all JSON Lines files of folders, and count what could be restored. Changes nothing."""
    result, counts = RestoreResult(), Counter[State]()
    for line in _read_matching(paths, selection, result):
        if line.message is not None:
            counts[line.message.state] += 1
    result.matched = {state: counts[state] for state in State if counts[state]}
    return result


async def restore_archive(
    store: OperatorStore,
    paths: Paths,
    *,
    by: str,
    selection: Selection = _EVERYTHING,
    dry_run: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> RestoreResult:
    """Put the closed messages of an archive back into history, in batches, and say so in the journal.

    `paths` are files, or folders whose JSON Lines files are meant. What is there already is left alone, so repeating
    this is harmless. A line that is no message, or that the store refuses, is reported and stops no other. With
    `dry_run` nothing is written. `on_progress` gets the number of messages that were looked at after each batch.
    """
    result, counts = RestoreResult(), Counter[State]()
    batches, seen = _split(_read_matching(paths, selection, result)), set[tuple[UUID, str]]()
    try:
        while batch := await asyncio.to_thread(next, batches, None):
            counts.update(message.state for _, message in batch)
            if dry_run:
                result.restored += await _count_missing(store, batch, result, seen)
            else:
                result.restored += await _restore(store, batch, result, by=by)
            on_progress(counts.total())
    finally:
        result.matched = {state: counts[state] for state in State if counts[state]}
        if result.restored and not dry_run:
            files = "1 file" if result.files == 1 else f"{result.files} files"
            await store.note(Action.RESTORED, by=by, detail=f"{format_count(result.restored)} of {files}")
    return result


_Batch: TypeAlias = list[tuple[ArchivedLine, Message]]


def _read_matching(paths: Paths, selection: Selection, result: RestoreResult) -> Iterator[ArchivedLine]:
    """Yield the lines with messages that match, and collect the problems of the others."""
    for path in list_files(paths):
        result.files += 1
        for line in read_lines(path):
            if line.message is None:
                result.add_problem(line, line.problem or "it is no message")
            elif matches(line.message, selection):
                yield line


def _split(lines: Iterable[ArchivedLine]) -> Iterator[_Batch]:
    """Yield batches that one transaction may take."""
    batch: _Batch = []
    size = 0
    for line in lines:
        if (message := line.message) is not None:
            batch.append((line, message))
            size += line.size
        if len(batch) == BATCH_SIZE or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _restore(store: OperatorStore, batch: _Batch, result: RestoreResult, *, by: str) -> int:
    """Restore a batch. If the store refuses it, each half by itself, down to the messages that are the cause."""
    try:
        restored = await store.restore([message for _, message in batch], by=by)
    except StoreRefused as error:
        if len(batch) == 1:
            result.add_problem(batch[0][0], f"the store refuses it: {error}")
            return 0
        middle = len(batch) // 2
        first = await _restore(store, batch[:middle], result, by=by)
        return first + await _restore(store, batch[middle:], result, by=by)
    result.known += len(batch) - restored
    return restored


async def _count_missing(
    store: OperatorStore, batch: _Batch, result: RestoreResult, seen: set[tuple[UUID, str]]
) -> int:
    """Count the messages of a batch that are neither in the store nor among those that were seen before."""
    named = Selection(message_ids=[message.message_id for _, message in batch])
    found = await store.find(named, limit=_MANY, payloads=False)
    seen |= {(message.message_id, message.destination) for message in found}
    missing = select_missing([message for _, message in batch], seen)
    seen |= {(message.message_id, message.destination) for message in missing}
    result.known += len(batch) - len(missing)
    return len(missing)
