"""Hand-off of one destination to Debezium, which reads the outbox from the log of PostgreSQL.

The first part writes text and connects to nothing: connector, publication, grants. The second reads slots and prunes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.handoff import HandoffMark, PruneStep, ServerLog, SlotStatus
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.postgres.connection import Database
from pillarbox.stores.postgres.grants import quote_role
from pillarbox.stores.sql import Statements

__all__ = [
    "LEAST_VERSION", "DebeziumPlan", "HandoffFacts", "HandoffLog", "build_connector", "build_findings", "build_grants",
    "build_publication",
]  # fmt: skip

LEAST_VERSION: Final = 15
"""The first version whose publications have row filters. Without one, every destination would be routed."""
_PASSWORD: Final = "${env:PILLARBOX_REPLICATION_PASSWORD}"  # noqa: S105 - Kafka Connect reads it from the environment
_DEFAULT_PORT: Final = "5432"

_COLUMNS: Final = MappingProxyType(
    {
        "content_type": "content-type",
        "message_id": "ce_id",
        "source": "ce_source",
        "type": "ce_type",
        "event_time": "ce_time",
        "topic": "ce_topic",
        "kind": "ce_kind",
        "key": "ce_partitionkey",
        "subject": "ce_subject",
        "correlation_id": "ce_correlationid",
        "causation_id": "ce_causationid",
        "headers": "ce_pillarboxheaders",
    }
)
"""Columns of the outbox, and the headers that our Kafka transport writes them to.

Event routers cannot take a map apart, so the headers of a message come as one, which Pillarbox's receiver splits.
"""
_READ: Final = ("id", "destination", "payload", *_COLUMNS)
"""Columns that the connector may see."""
_ADDED_HEADERS: Final = (
    "id", "__debezium.context.connectorLogicalName", "__debezium.context.taskId",
    "__debezium.context.connectorName", "__debezium.context.runId",
)  # fmt: skip
"""Headers that Debezium adds to each record, and that no consumer needs."""
_ROUTED_FIELDS: Final = ("topic", "type", "destination", "source", "kind")
_TEMPLATE: Final = re.compile(r"([A-Za-z0-9._-]*)(?:\{(\w+)\}([A-Za-z0-9._-]*))?")


class DebeziumPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-off: which messages, and the names of everything that it takes."""

    destination: str
    names: Names
    schema: str
    """Schema of the outbox."""
    connector: str
    slot: str
    publication: str
    role: str
    """Database role of the connector."""
    topic: str = "{topic}"
    """Kafka topic of a message, as the option `topic` of our Kafka transport has it."""
    host: str = "127.0.0.1"
    port: str = _DEFAULT_PORT
    database: str = "postgres"
    failover: bool = False
    """Whether the slot should move to a standby: PostgreSQL 17 or newer."""

    @property
    def table(self) -> str:
        """Name of the outbox as Debezium writes it."""
        return f"{self.schema}.{self.names.bare('outbox')}"

    @property
    def quoted_table(self) -> str:
        return f'"{self.schema}"."{self.names.bare("outbox")}"'

    @classmethod
    def read_address(cls, dsn: str) -> Mapping[str, str]:
        """Return host, port and database of a URL, for the connector; what it leaves out has PostgreSQL's default."""
        parts = urlsplit(dsn)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        hosts = parts.netloc.rpartition("@")[2].split(",")[0]  # Debezium takes one
        host, _, port = hosts.rpartition(":") if re.search(r":\d+$", hosts) else (hosts, "", "")
        found = {
            "host": unquote(host).strip("[]") or query.get("host", ""),
            "port": port or query.get("port", ""),
            "database": unquote(parts.path.lstrip("/")) or query.get("dbname", ""),
        }
        return {name: value for name, value in found.items() if value and not value.startswith("/")}


def build_connector(plan: DebeziumPlan) -> dict[str, object]:
    """Build the document that creates the connector: what `POST /connectors` of Kafka Connect takes."""
    field, replacement = _route(plan.topic)
    select = ", ".join(f'"{column}"' for column in _READ)
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": plan.host,
        "database.port": plan.port,
        "database.dbname": plan.database,
        "database.user": plan.role,
        "database.password": _PASSWORD,
        "topic.prefix": plan.connector,
        "plugin.name": "pgoutput",
        "slot.name": plan.slot,
        **({"slot.failover": "true"} if plan.failover else {}),
        "publication.name": plan.publication,
        # The connector would make a publication without the row filter.
        "publication.autocreate.mode": "disabled",
        "table.include.list": re.escape(plan.table),
        "column.include.list": f"{re.escape(plan.table)}\\.({'|'.join(_READ)})",
        # Reads the rows again if the slot was lost: what was not confirmed was not pruned, so nothing is missed.
        "snapshot.mode": "when_needed",
        "snapshot.select.statement.overrides": plan.table,
        f"snapshot.select.statement.overrides.{plan.table}": (
            f"select {select} from {plan.quoted_table} where destination = {_to_literal(plan.destination)} order by id"
        ),
        "skipped.operations": "u,d,t",
        "tombstones.on.delete": "false",
        "binary.handling.mode": "bytes",
        # Only what Kafka acknowledged is confirmed: `handoff prune` relies on it.
        "lsn.flush.mode": "connector",
        # The slot goes on while other tables alone are written; without it the log would be kept for ever.
        "heartbeat.interval.ms": "10000",
        "heartbeat.action.query": "select pg_logical_emit_message(false, 'pillarbox', '')",
        "message.prefix.exclude.list": "pillarbox",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        # For heartbeats alone: a payload goes through untouched.
        "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.delegate.converter.type.schemas.enable": "false",
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        "producer.override.acks": "all",
        "producer.override.enable.idempotence": "true",
        "predicates": "message",
        "predicates.message.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        "predicates.message.name": "ce_id",
        "transforms": "outbox,specversion,added",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.id": "message_id",
        "transforms.outbox.table.field.event.key": "key",
        "transforms.outbox.table.field.event.payload": "payload",
        "transforms.outbox.route.by.field": field,
        "transforms.outbox.route.topic.replacement": replacement,
        "transforms.outbox.table.fields.additional.placement": ",".join(
            f"{column}:header:{header}" for column, header in _COLUMNS.items()
        ),
        "transforms.specversion.type": "org.apache.kafka.connect.transforms.InsertHeader",
        "transforms.specversion.predicate": "message",
        "transforms.specversion.header": "ce_specversion",
        # Kafka Connect takes every literal for a number that looks like one. 1.0 would be written as 1, and in quotes
        # with its quotes; this one is the 32-bit number 1.0, which is written so.
        "transforms.specversion.value.literal": "1.000000001",
        "transforms.added.type": "org.apache.kafka.connect.transforms.DropHeaders",
        "transforms.added.headers": ",".join(_ADDED_HEADERS),
    }
    return {"name": plan.connector, "config": config}


def _route(template: str) -> tuple[str, str]:
    """Return the column that decides about the topic, and the topic in the event router's words."""
    found = _TEMPLATE.fullmatch(template)
    if found is None or found[2] not in (None, *_ROUTED_FIELDS):
        fields = ", ".join(f"{{{field}}}" for field in _ROUTED_FIELDS)
        raise ConfigError(
            f"The topic {template[:100]!r} cannot be handed off: the event router fills in one field of {fields}, "
            "between letters, digits, dots, underscores and dashes. Give another with --topic."
        )
    before, field, after = found.groups()
    return field or "topic", before if field is None else f"{before}${{routedByValue}}{after}"


def build_publication(plan: DebeziumPlan) -> str:
    """Write the publication with the messages of this destination alone. Updates and deletes are not published."""
    return (
        f"-- PostgreSQL {LEAST_VERSION} or newer, as the owner of the table.\n"
        f"create publication {plan.publication} for table {plan.quoted_table}\n"
        f"    where (destination = {_to_literal(plan.destination)})\n"
        "    with (publish = 'insert');\n"
    )


def build_grants(plan: DebeziumPlan) -> str:
    """Write what the connector's role needs: replication, and the columns that it routes. The role must exist."""
    role = quote_role(plan.role)
    columns = ", ".join(_READ)
    return (
        f"-- As a superuser; on a managed service what it has instead, such as: grant rds_replication to {role};\n"
        f"alter role {role} with login replication;\n"
        f"grant connect on database {_quote(plan.database)} to {role};\n"
        f"grant usage on schema {_quote(plan.schema)} to {role};\n"
        f"grant select ({columns}) on {plan.quoted_table} to {role};\n"
    )


def _quote(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _to_literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


# --- the server ---


class HandoffFacts(msgspec.Struct, frozen=True, kw_only=True):
    """State of one hand-off on the server."""

    destination: str
    slot_name: str
    publication: str
    server: ServerLog
    slot: SlotStatus | None = None
    keep_limit: str = "-1"
    """`max_slot_wal_keep_size`; -1 is no limit."""
    standbys: int = 0
    """Physical slots."""
    publishes_inserts: bool | None = None
    """None: there is no such publication."""
    has_table: bool = False
    """The publication has the outbox."""
    row_filter: str | None = None
    idle_slots: Mapping[str, int] = {}
    """Logical slots that nobody reads, with the bytes that are kept for each."""


class HandoffLog:
    """Reads slots and publications, and deletes what a slot's reader has confirmed."""

    def __init__(self, database: Database, sql: Statements, *, names: Names) -> None:
        self._database = database
        self._sql = sql
        self._names = names

    async def describe_server(self) -> ServerLog:
        async with self._database.unpinned() as connection:
            row = await connection.fetchrow(self._sql["handoff_server"], self._names.table("outbox"))
        version, level, schema, database = row
        return ServerLog(version=version, level=level, schema=schema.strip('"'), database=database)

    async def slot(self, name: str) -> SlotStatus | None:
        async with self._database.unpinned() as connection:
            row = await connection.fetchrow(self._sql["handoff_slot"], name)
        if row is None:
            return None
        text, confirmed, kept = row
        columns: dict[str, Any] = json.loads(text)
        return SlotStatus(
            name=name,
            is_active=columns["active"],
            confirmed=confirmed,
            kept_bytes=kept or 0,
            wal_status=columns.get("wal_status") or "lost",
            safe_bytes=columns.get("safe_wal_size"),
            has_failover=columns.get("failover"),
        )

    async def mark(self) -> HandoffMark:
        async with self._database.unpinned() as connection:
            snapshot, position = await connection.fetchrow(self._sql["handoff_mark"])
        return HandoffMark(snapshot, position)

    async def prune(
        self,
        destination: str,
        *,
        mark: HandoffMark | None,
        older_than: timedelta,
        after: int,
        limit: int,
        now: object,
    ) -> PruneStep:
        async with self._database.durable(limited=False) as connection:
            deleted, last = await connection.fetchrow(
                self._sql["handoff_prune"], destination, None if mark is None else mark.snapshot, older_than, after,
                limit, now,
            )  # fmt: skip
        return PruneStep(deleted, last)

    async def read_facts(self, destination: str, *, slot: str, publication: str) -> HandoffFacts:
        """Read the state of a hand-off. Changes nothing."""
        server = await self.describe_server()
        async with self._database.unpinned() as connection:
            outbox = self._names.bare("outbox")
            row = await connection.fetchrow(self._sql["handoff_inspect"], publication, server.schema, outbox)
            idle = dict(await connection.fetch(self._sql["handoff_idle_slots"]))
        keep_limit, standbys, publishes_inserts, row_filter, has_table = row
        return HandoffFacts(
            destination=destination,
            slot_name=slot,
            publication=publication,
            server=server,
            slot=await self.slot(slot),
            keep_limit=keep_limit,
            standbys=standbys,
            publishes_inserts=publishes_inserts,
            has_table=has_table,
            row_filter=row_filter,
            idle_slots=idle,
        )


# --- findings ---

_MUCH: Final = 1024**3
"""Bytes of log that a slot may keep before it is reported."""
_LITERAL: Final = re.compile(r"'((?:[^']|'')*)'")


def build_findings(facts: HandoffFacts) -> Sequence[Finding]:
    """List what could lose or delay the messages of a handed-off destination."""
    return [*_check_server(facts), *_check_publication(facts), *_check_slot(facts), *_check_idle_slots(facts)]


def _check_server(facts: HandoffFacts) -> Iterator[Finding]:
    if facts.server.version < LEAST_VERSION:
        yield Finding(
            code="handoff.old-server",
            severity=Severity.CRITICAL,
            what=f"{facts.destination} is handed off on PostgreSQL {facts.server.version}, which has no row filters.",
            why="The connector would route the messages of every destination.",
            fix=f"Upgrade to PostgreSQL {LEAST_VERSION} or newer, or let a relay serve {facts.destination}.",
        )
    if facts.server.level != "logical":
        yield Finding(
            code="handoff.wal-level",
            severity=Severity.CRITICAL,
            what=f"{facts.destination} is handed off, and wal_level is {facts.server.level}.",
            why="The log holds too little for a connector, so nothing is delivered.",
            fix="Set wal_level = logical, and restart the server.",
        )


def _check_publication(facts: HandoffFacts) -> Iterator[Finding]:
    fix = f"Run what `pillarbox handoff debezium --destination {facts.destination} --part publication` prints"
    if facts.publishes_inserts is None or not facts.has_table:
        missing = "does not exist" if facts.publishes_inserts is None else "does not have the outbox"
        yield Finding(
            code="handoff.publication-missing",
            severity=Severity.CRITICAL,
            what=f"The publication {facts.publication} of {facts.destination} {missing}.",
            why="The connector sees none of its messages.",
            fix=f"{fix}, then restart the connector.",
        )
        return
    if not facts.publishes_inserts:
        yield Finding(
            code="handoff.publication-without-inserts",
            severity=Severity.CRITICAL,
            what=f"The publication {facts.publication} of {facts.destination} does not publish inserts.",
            why="A message is an insert: none is delivered.",
            fix=f"Run: alter publication {facts.publication} set (publish = 'insert').",
        )
    if _LITERAL.findall(facts.row_filter or "") != [facts.destination.replace("'", "''")]:
        shown = "has no row filter" if facts.row_filter is None else f"has another row filter: {facts.row_filter}"
        yield Finding(
            code="handoff.publication-filter",
            severity=Severity.CRITICAL,
            what=f"The publication {facts.publication} of {facts.destination} {shown}.",
            why="Messages of other destinations are delivered there too, or its own are not.",
            fix=f"Drop the publication. {fix}.",
        )


def _check_slot(facts: HandoffFacts) -> Iterator[Finding]:
    slot = facts.slot
    if slot is None:
        yield Finding(
            code="handoff.slot-missing",
            severity=Severity.CRITICAL,
            what=f"The slot {facts.slot_name} of {facts.destination} does not exist in this database.",
            why="No connector delivers its messages. After a failover before PostgreSQL 17 the slot is gone.",
            fix="Start the connector: it makes the slot, and reads what is in the outbox. Messages that are not pruned "
            "are not lost.",
        )
        return
    if slot.wal_status == "lost":
        yield Finding(
            code="handoff.slot-lost",
            severity=Severity.CRITICAL,
            what=f"The slot {slot.name} of {facts.destination} has lost its place in the log.",
            why="Its reader was away while more than max_slot_wal_keep_size was written.",
            fix=f"Run select pg_drop_replication_slot('{slot.name}') and restart the connector: with "
            "snapshot.mode=when_needed it reads what is in the outbox.",
        )
        return
    if not slot.is_active:
        yield Finding(
            code="handoff.slot-inactive",
            severity=Severity.CRITICAL,
            what=f"Nobody reads the slot {slot.name} of {facts.destination}; {_format_bytes(slot.kept_bytes)} of log "
            "are kept for it.",
            why="Its messages wait, and the log grows until the disk is full or the slot is lost.",
            fix="Start the connector, or look at its status in Kafka Connect.",
        )
    elif slot.kept_bytes > _MUCH:
        yield Finding(
            code="handoff.slot-lags",
            severity=Severity.WARNING,
            what=f"{_format_bytes(slot.kept_bytes)} of log are kept for the slot {slot.name} of {facts.destination}"
            f"{_format_room(slot)}.",
            why="Its connector is slow, or confirms nothing; messages come late, and the disk fills.",
            fix="Look at the connector's status and lag, and at its heartbeat.interval.ms and heartbeat.action.query.",
        )
    yield from _check_limits(facts, slot)


def _check_limits(facts: HandoffFacts, slot: SlotStatus) -> Iterator[Finding]:
    if slot.wal_status == "unreserved":
        yield Finding(
            code="handoff.slot-unreserved",
            severity=Severity.CRITICAL,
            what=f"The slot {slot.name} of {facts.destination} is about to lose its place in the log"
            f"{_format_room(slot)}.",
            why="More than max_slot_wal_keep_size was written since its reader confirmed something.",
            fix="Start or unblock the connector now, or raise max_slot_wal_keep_size.",
        )
    if facts.keep_limit == "-1":
        yield Finding(
            code="handoff.log-unlimited",
            severity=Severity.INFO,
            what="The log that slots keep has no limit (max_slot_wal_keep_size is -1).",
            why="A connector that stays away fills the disk, and then nobody can write.",
            fix="Set max_slot_wal_keep_size to what the disk has room for. A lost slot loses no message of the outbox "
            "that is not pruned.",
        )
    if slot.has_failover is False and facts.standbys:
        yield Finding(
            code="handoff.slot-without-failover",
            severity=Severity.WARNING,
            what=f"There are standbys, and the slot {slot.name} of {facts.destination} does not move to them.",
            why="After a failover the slot is gone, and the connector reads the outbox from its start.",
            fix="Add slot.failover=true to the connector (`handoff debezium --failover` prints it), and set "
            "sync_replication_slots on the standby.",
        )


def _check_idle_slots(facts: HandoffFacts) -> Iterator[Finding]:
    idle = {name: kept for name, kept in facts.idle_slots.items() if kept > _MUCH and name != facts.slot_name}
    if idle:
        shown = ", ".join(f"{name} ({_format_bytes(kept)})" for name, kept in sorted(idle.items()))
        yield Finding(
            code="handoff.idle-slots",
            severity=Severity.WARNING,
            what=f"Nobody reads these slots, and log is kept for them: {shown}.",
            why="The log grows until the disk is full.",
            fix="Drop those that nobody needs with pg_drop_replication_slot.",
        )


def _format_room(slot: SlotStatus) -> str:
    return "" if slot.safe_bytes is None else f"; after {_format_bytes(max(slot.safe_bytes, 0))} more it may be lost"


def _format_bytes(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count / 1024**2:.1f} MiB"
