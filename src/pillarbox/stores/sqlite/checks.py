"""Checks of an SQLite file and its disk: settings and shortages that could lose or delay messages."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.errors import StoreError
from pillarbox.stores.catalog import IdCounter
from pillarbox.stores.sqlite.connection import Database, Synchronous

__all__ = ["SqliteFacts", "build_findings", "read_facts"]

_MIB: Final = 1024 * 1024
LITTLE_SPACE: Final = 256 * _MIB
"""Free bytes below which a warning is due."""
NO_SPACE: Final = 16 * _MIB
"""Free bytes with which a relay can no longer count on writing."""
LONG_LOG: Final = 1024 * _MIB
"""Bytes of a write-ahead log that could not be shortened for a long time."""


class SqliteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """State of the file, of its disk, and how it was opened."""

    path: Path
    synchronous: Synchronous = "full"
    free: int
    """Bytes on its disk that this user may fill."""
    log_size: int = 0
    """Bytes of the `-wal` file."""
    open_to_others: str = ""
    """What every user of this machine may do with the file, such as `read and write`."""
    counter: IdCounter = IdCounter()


async def read_facts(database: Database) -> SqliteFacts:
    """Read the facts in a thread: a file system may be slow to answer."""
    try:
        ((last, highest),) = await database.query("inspect_counter")
        counter = IdCounter(last=last, highest=highest)
    except StoreError:  # it is not open, or its tables are not there: that is told elsewhere
        counter = IdCounter()
    return await asyncio.to_thread(_read_facts, database, counter)


def _read_facts(database: Database, counter: IdCounter) -> SqliteFacts:
    log = database.path.with_name(f"{database.path.name}-wal")
    disk = os.statvfs(database.path)
    return SqliteFacts(
        path=database.path,
        synchronous=database.synchronous,
        free=disk.f_bavail * disk.f_frsize,
        log_size=log.stat().st_size if log.exists() else 0,
        open_to_others=_describe_others(database.path),
        counter=counter,
    )


def _describe_others(path: Path) -> str:
    """Describe what users who are neither the owner nor in the group may do with the file. A closed folder ends it."""
    path = path.resolve()
    if os.name != "posix" or any(not folder.stat().st_mode & stat.S_IXOTH for folder in path.parents):
        return ""
    mode = path.stat().st_mode
    return " and ".join(word for word, bit in (("read", stat.S_IROTH), ("write", stat.S_IWOTH)) if mode & bit)


def build_findings(
    facts: SqliteFacts, *, little_space: int = LITTLE_SPACE, no_space: int = NO_SPACE, long_log: int = LONG_LOG
) -> Sequence[Finding]:
    """Return what could lose or delay messages. Pure."""
    return [
        *_check_durability(facts),
        *_check_space(facts, little_space, no_space),
        *_check_log(facts, long_log),
        *_check_rights(facts),
        *facts.counter.list_findings(
            code="sqlite.ids-behind",
            fix=f"Stop the writers, and run update sqlite_sequence set seq = {facts.counter.highest} "
            "where name = 'pillarbox_outbox', with your prefix.",
        ),
    ]


def _check_durability(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.synchronous != "full":
        yield Finding(
            code="sqlite.commits-not-awaited",
            severity=Severity.WARNING,
            what=f"The store is opened with synchronous={facts.synchronous}: no commit waits for the disk.",
            why="A power cut takes the last commits back, failures and what people did among them.",
            fix="Leave the option synchronous out, or set it to full. Writers set their own connections: leave "
            "`pragma synchronous` at full there too.",
        )


def _check_space(facts: SqliteFacts, little_space: int, no_space: int) -> Iterator[Finding]:
    if facts.free < little_space:
        is_full = facts.free < no_space
        yield Finding(
            code="sqlite.disk-full" if is_full else "sqlite.disk-nearly-full",
            severity=Severity.CRITICAL if is_full else Severity.WARNING,
            what=f"The disk of {facts.path} has {facts.free // _MIB} MiB left.",
            why="On a full disk no message can be written and no delivery recorded.",
            fix="Make room on the disk, or move the file to a larger one while every writer and relay is stopped.",
        )


def _check_log(facts: SqliteFacts, long_log: int) -> Iterator[Finding]:
    if facts.log_size >= long_log:
        yield Finding(
            code="sqlite.log-grows",
            severity=Severity.WARNING,
            what=f"The write-ahead log beside {facts.path} has grown to {facts.log_size // _MIB} MiB.",
            why="Some reader has not finished for a long time, so the log cannot be shortened: reads become slow and "
            "the disk fills.",
            fix="Find the connection that keeps a transaction open, and end it.",
        )


def _check_rights(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.open_to_others:
        yield Finding(
            code="sqlite.open-to-others",
            severity=Severity.WARNING,
            what=f"Every user of this machine may {facts.open_to_others} {facts.path}.",
            why="The file holds the payloads of all messages, and whoever writes into it makes relays send messages.",
            fix="Take the rights of others away with chmod o-rwx, from the -wal and -shm files beside it too. Several "
            "accounts can share it by a group.",
        )
