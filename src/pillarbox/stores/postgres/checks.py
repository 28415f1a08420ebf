"""Checks of a PostgreSQL server for `pillarbox doctor`: facts are read first, findings are drawn from them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.message import Names
from pillarbox.stores.catalog import IdCounter
from pillarbox.stores.postgres.connection import Database
from pillarbox.stores.postgres.driver import Connection
from pillarbox.stores.postgres.grants import Right, list_rights
from pillarbox.stores.sql import Statements

__all__ = ["PostgresFacts", "build_findings", "read_counter", "read_facts"]

_LONG: Final = timedelta(minutes=15)
"""A transaction that has been open for this long is reported."""

_NOT_AWAITED: Final = frozenset({"off", "false", "no", "0"})
"""The values of `synchronous_commit` with which a commit is answered before it is on disk."""

_SETTINGS: Final = (
    "in_recovery", "read_only", "fsync", "full_page_writes", "synchronous_commit", "synchronous_standbys", "standbys",
    "login", "prepared_transactions",
)  # fmt: skip
"""The columns of the statement `inspect_settings`, in their order."""


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server, its open transactions, and the rights of this login."""

    login: str
    in_recovery: bool = False
    read_only: bool = False
    fsync: bool = True
    full_page_writes: bool = True
    synchronous_commit: str = "on"
    """The value with which sessions of this login begin."""
    role_commits: Mapping[str, str] = {}
    """Role to its own `synchronous_commit`, where one is set."""
    standbys: int = 0
    synchronous_standbys: str = ""
    pins: Mapping[str, timedelta] = {}
    """Sessions and prepared transactions that keep dead rows from being removed, with their age."""
    hidden_sessions: int = 0
    """Sessions that this login may not look into."""
    missing_rights: Sequence[str] = ()
    prepared_transactions: int = 0
    """How many transactions may be prepared at once (max_prepared_transactions)."""
    counter: IdCounter = IdCounter()
    has_foreign_transactions: bool = False
    """Fresh messages name transactions that this server has not begun yet."""


async def read_facts(database: Database, sql: Statements, *, names: Names) -> PostgresFacts:
    """Read the facts from the server. Changes nothing."""
    rights = list_rights("relay", names=names)
    # The portable dialect has no functions.
    needed = [one for one in rights if one.privilege != "execute" or not database.is_portable]
    columns = ([one.table for one in needed], [one.privilege for one in needed], [one.column for one in needed])
    async with database.unpinned() as connection:
        settings = await connection.fetchrow(sql["inspect_settings"])
        missing = await connection.fetch(sql["inspect_rights"], *columns)
        return PostgresFacts(
            **dict(zip(_SETTINGS, settings, strict=True)),
            role_commits=dict(await connection.fetch(sql["inspect_roles"])),
            pins=dict(await connection.fetch(sql["inspect_pins"])),
            hidden_sessions=await connection.fetchval(sql["inspect_hidden"]),
            missing_rights=[str(Right(*row)) for row in missing],
            # A login that lacks a right may not even ask: that is the finding then.
            counter=IdCounter() if missing else await read_counter(connection, sql, names=names),
            has_foreign_transactions=not missing and await connection.fetchval(sql["inspect_transactions"]),
        )


async def read_counter(connection: Connection, sql: Statements, *, names: Names) -> IdCounter:
    """Read the counter of ids, and how far it should be."""
    last, highest, mark = await connection.fetchrow(sql["inspect_counter"], names.table("outbox"))
    return IdCounter(last=last, highest=highest, mark=mark)


def build_findings(facts: PostgresFacts, *, long: timedelta = _LONG) -> Sequence[Finding]:
    """List what could lose or delay messages. A standby is one finding: its settings are not the primary's."""
    if facts.in_recovery:
        return [_STANDBY]
    return [
        *_check_rights(facts),
        *_check_durability(facts),
        *_check_standbys(facts),
        *_check_pins(facts, long),
        *_check_notifications(facts),
        *facts.counter.list_findings(
            code="postgresql.ids-behind",
            fix=f"Stop the writers, and run select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), "
            f"{facts.counter.least}), with your schema and prefix.",
        ),
        *_check_transactions(facts),
    ]


_STANDBY: Final = Finding(
    code="postgresql.standby",
    severity=Severity.CRITICAL,
    what="The store URL leads to a standby, which takes no writes.",
    why="A relay cannot own lanes there, and a standby shows commits later and in another order than the primary.",
    fix="Point the store URL at the primary, or name all servers: postgresql://db-1,db-2,db-3/shop.",
)


def _check_rights(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.read_only:
        yield Finding(
            code="postgresql.read-only",
            severity=Severity.CRITICAL,
            what=f"Sessions of {facts.login} begin read-only (default_transaction_read_only is on).",
            why="A relay cannot own lanes or record a delivery.",
            fix="Set default_transaction_read_only to off for this role, database or server.",
        )
    if facts.missing_rights:
        yield Finding(
            code="postgresql.missing-rights",
            severity=Severity.CRITICAL,
            what=f"{facts.login} lacks rights that a relay needs: {'; '.join(facts.missing_rights)}.",
            why="The relay's statements are refused, so messages are not delivered or not recorded.",
            fix=f"As the tables' owner, run what `pillarbox schema grants --relay {shlex.quote(facts.login)}` prints.",
        )


def _check_durability(facts: PostgresFacts) -> Iterator[Finding]:
    if not facts.fsync:
        yield Finding(
            code="postgresql.fsync-off",
            severity=Severity.WARNING,
            what="The server runs with fsync = off.",
            why="When its machine crashes, commits are lost and the database may be damaged: committed messages "
            "vanish, and delivered ones were never committed.",
            fix="Set fsync = on in postgresql.conf and restart the server.",
        )
    if not facts.full_page_writes:
        yield Finding(
            code="postgresql.full-page-writes-off",
            severity=Severity.WARNING,
            what="The server runs with full_page_writes = off.",
            why="A crash of its machine can leave half-written pages that recovery does not repair.",
            fix="Set full_page_writes = on, unless the file system itself never tears a page.",
        )
    if roles := sorted(_find_hasty_roles(facts)):
        yield Finding(
            code="postgresql.commits-not-awaited",
            severity=Severity.WARNING,
            what=f"synchronous_commit is off for {', '.join(roles)}.",
            why="A commit is answered before it is on disk: a crash of the server takes the last ones back, although "
            "their messages may have been delivered.",
            fix="Set synchronous_commit to on for every role that writes messages. The relay relaxes its own itself.",
        )


def _find_hasty_roles(facts: PostgresFacts) -> Iterator[str]:
    """Find the roles whose commits do not wait for the disk."""
    if facts.synchronous_commit in _NOT_AWAITED and facts.login not in facts.role_commits:
        yield f"{facts.login} (by default of the database or server)"
    yield from (role for role, value in facts.role_commits.items() if value in _NOT_AWAITED)


def _check_standbys(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.standbys and not facts.synchronous_standbys:
        yield Finding(
            code="postgresql.standbys-not-awaited",
            severity=Severity.INFO,
            what=f"Commits do not wait for {_format_count(facts.standbys, 'receiver')} of this server's log "
            "(synchronous_standby_names is empty).",
            why="A failover to one of them loses the last commits, although their messages may have been delivered.",
            fix="Name the standbys that may take over in synchronous_standby_names, if that matters more than latency.",
        )


def _check_pins(facts: PostgresFacts, long: timedelta) -> Iterator[Finding]:
    if old := [f"{who} for {_format_minutes(age)}" for who, age in facts.pins.items() if age >= long]:
        yield Finding(
            code="postgresql.long-transaction",
            severity=Severity.WARNING,
            what=f"A transaction has been open for a long time: {'; '.join(old)}.",
            why="No dead row is removed meanwhile: the outbox grows, and messages that it wrote itself wait for it.",
            fix="End it, and set idle_in_transaction_session_timeout so that it does not happen again.",
        )
    if facts.hidden_sessions:
        yield Finding(
            code="postgresql.sessions-hidden",
            severity=Severity.INFO,
            what=f"{facts.login} may not look into {_format_count(facts.hidden_sessions, 'session')} of other roles.",
            why="A transaction that has been open for a long time would not be seen.",
            fix="To have it checked, grant this role membership in pg_read_all_stats.",
        )


def _check_notifications(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.prepared_transactions > 0:
        yield Finding(
            code="postgresql.notifications-off",
            severity=Severity.INFO,
            what=f"Inserts do not wake an idle relay: max_prepared_transactions is {facts.prepared_transactions}.",
            why="A transaction that has notified cannot be prepared, so the trigger notifies nobody. Relays poll.",
            fix="For writers that never use two-phase commit, set pillarbox.notify = on, for example with ALTER ROLE.",
        )


def _check_transactions(facts: PostgresFacts) -> Iterator[Finding]:
    if facts.has_foreign_transactions:
        yield Finding(
            code="postgresql.foreign-transactions",
            severity=Severity.WARNING,
            what="Fresh messages name transactions that this server has not begun: they were restored from another.",
            why="Every read takes them for messages that have just become visible, and looks at all of them again: "
            "reads are ten times slower until they are delivered.",
            fix="As the tables' owner, run: update pillarbox_outbox set tx = default "
            "where tx >= pg_snapshot_xmax(pg_current_snapshot()).",
        )


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _format_minutes(age: timedelta) -> str:
    return f"{age.total_seconds() / 60:.0f} min"
