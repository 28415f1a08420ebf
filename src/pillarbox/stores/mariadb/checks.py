"""Checks of a MariaDB server: settings that could lose or delay messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.stores.catalog import IdCounter
from pillarbox.stores.mariadb.connection import Database

__all__ = ["MariadbFacts", "build_findings", "counter_from_rows", "read_facts"]

_LEAST_NODES: Final = 3
"""With fewer, no majority is left when one is away."""
_LONG: Final = timedelta(minutes=15)
"""Age from which an open transaction is reported."""


class MariadbFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and state that the server reports."""

    read_only: bool = False
    flush_at_commit: int = 1
    """`innodb_flush_log_at_trx_commit`."""
    binary_log: bool = False
    sync_binlog: int = 1
    id_steps: int = 1
    """`auto_increment_increment`: above 1 where several servers take writes."""
    engines: Sequence[str] = ()
    """Our tables that are not InnoDB's, such as `pillarbox_outbox (MyISAM)`."""
    longest: timedelta | None = None
    """The age of the oldest open transaction; None where this login may not see it, or there is none."""
    counter: IdCounter = IdCounter()
    nodes: int | None = None
    """Nodes of the Galera cluster or members of the group; None where there is neither, or it cannot be seen."""
    is_ready: bool = True
    """False: a node of Galera that left its cluster, or whose part of it has no majority."""


async def read_facts(database: Database) -> MariadbFacts:
    """Read the facts from the server."""
    (settings,) = await database.query("inspect_settings")
    engines = await database.query("inspect_engines", database.table_values())
    return MariadbFacts(
        read_only=bool(settings[0]), flush_at_commit=settings[1], binary_log=bool(settings[2]),
        sync_binlog=settings[3], id_steps=settings[4],
        engines=[f"{table} ({engine})" for table, engine in engines], longest=await _read_longest(database),
        counter=await _read_counter(database), **await _read_cluster(database),
    )  # fmt: skip


async def _read_cluster(database: Database) -> dict[str, Any]:
    """Return the facts about a Galera cluster or a replication group; none where there is neither."""
    status = {str(name).lower(): str(value) for name, value in await database.query("inspect_galera")}
    if int(status.get("wsrep_cluster_size", "0")):
        is_ready = (status.get("wsrep_ready"), status.get("wsrep_cluster_status")) == ("ON", "Primary")
        return {"nodes": int(status["wsrep_cluster_size"]), "is_ready": is_ready}
    try:
        ((members,),) = await database.query("inspect_group")
    except StoreUnavailable:
        raise
    except StoreError:  # MariaDB has no groups, or this login may not read the table
        return {}
    return {"nodes": int(members)} if members else {}


async def _read_counter(database: Database) -> IdCounter:
    try:
        return counter_from_rows(await database.query("inspect_counter", database.table_values()))
    except StoreUnavailable:
        raise
    except StoreError:  # this login may not read the tables
        return IdCounter()


def counter_from_rows(rows: Sequence[Sequence[Any]]) -> IdCounter:
    """Return the counter of ids; an unknown one if this login may not see the table's."""
    for last, highest in rows:
        return IdCounter(last=None if last is None else int(last), highest=int(highest))
    return IdCounter()


async def _read_longest(database: Database) -> timedelta | None:
    try:
        ((seconds,),) = await database.query("inspect_transactions")
    except StoreUnavailable:
        raise
    except StoreError:  # this login may not read the table
        return None
    return None if seconds is None else timedelta(seconds=int(seconds))


def build_findings(facts: MariadbFacts, *, long: timedelta = _LONG) -> Sequence[Finding]:
    """Return what could lose or delay messages. Pure."""
    return [
        *_check_writes(facts),
        *_check_cluster(facts),
        *_check_durability(facts),
        *_check_order(facts),
        *_check_age(facts, long),
        *facts.counter.list_findings(
            code="mysql.ids-behind",
            fix=f"Stop the writers, and run alter table pillarbox_outbox auto_increment = {facts.counter.highest + 1}, "
            "with your schema and prefix.",
        ),
    ]


def _check_writes(facts: MariadbFacts) -> Iterator[Finding]:
    if facts.read_only:
        yield Finding(
            code="mysql.read-only",
            severity=Severity.CRITICAL,
            what="The server is read-only: it is a replica, or was set so.",
            why="A relay cannot own lanes or record a delivery there.",
            fix="Point the store URL at the primary, or set read_only to off.",
        )
    if facts.engines:
        yield Finding(
            code="mysql.not-transactional",
            severity=Severity.CRITICAL,
            what=f"Tables without transactions: {', '.join(facts.engines)}.",
            why="A message would be there although its business data was rolled back.",
            fix="Convert them with `alter table … engine = InnoDB`.",
        )


def _check_cluster(facts: MariadbFacts) -> Iterator[Finding]:
    if not facts.is_ready:
        yield Finding(
            code="mysql.node-not-ready",
            severity=Severity.CRITICAL,
            what="This node of Galera is not ready, or its part of the cluster has no majority.",
            why="It refuses every statement, so a relay can do nothing there.",
            fix="Name all nodes in the store URL, mysql://db-1,db-2,db-3/shop, and bring the cluster together again.",
        )
    elif facts.nodes is not None and facts.nodes < _LEAST_NODES:
        yield Finding(
            code="mysql.few-nodes",
            severity=Severity.WARNING,
            what=f"The cluster has {_format_nodes(facts.nodes)}, and a majority needs {_LEAST_NODES}.",
            why="When one more is away the rest takes no writes, or holds the only copy of them.",
            fix=f"Run at least {_LEAST_NODES} nodes, on machines of their own.",
        )


def _format_nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"


def _check_durability(facts: MariadbFacts) -> Iterator[Finding]:
    if facts.flush_at_commit != 1:
        yield Finding(
            code="mysql.commits-not-awaited",
            severity=Severity.WARNING,
            what=f"innodb_flush_log_at_trx_commit is {facts.flush_at_commit}: commits do not wait for the disk.",
            why="A crash of the machine takes the last commits back, messages among them.",
            fix="Set innodb_flush_log_at_trx_commit to 1.",
        )
    if facts.binary_log and facts.sync_binlog != 1:
        yield Finding(
            code="mysql.binary-log-not-awaited",
            severity=Severity.INFO,
            what=f"sync_binlog is {facts.sync_binlog}: commits do not wait for the binary log.",
            why="After a crash of the machine replicas may miss messages that the primary has, or have others.",
            fix="Set sync_binlog to 1 if a replica may ever take the primary's place.",
        )


def _check_order(facts: MariadbFacts) -> Iterator[Finding]:
    if facts.id_steps > 1:
        yield Finding(
            code="mysql.several-writers",
            severity=Severity.WARNING,
            what=f"auto_increment_increment is {facts.id_steps}: several servers take writes.",
            why="Ids of different servers do not follow each other in time, so messages of one key written on two "
            "servers may be delivered out of order.",
            fix="Send all writers of the outbox to one server, as Galera's and group replication's guides advise too.",
        )


def _check_age(facts: MariadbFacts, long: timedelta) -> Iterator[Finding]:
    if facts.longest is not None and facts.longest >= long:
        yield Finding(
            code="mysql.long-transaction",
            severity=Severity.WARNING,
            what=f"A transaction has been open for {facts.longest // timedelta(minutes=1)} minutes.",
            why="What was deleted since it began cannot be removed, and every read has to pass over it.",
            fix="Find it in information_schema.innodb_trx, and end it.",
        )
