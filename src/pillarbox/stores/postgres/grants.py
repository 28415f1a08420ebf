"""The fewest rights that each role of a system needs on PostgreSQL, as SQL text. Connects to nothing.

writer      adds messages to the outbox, and can neither read nor change one
consumer    a writer that also records what it has seen, in the inbox
relay       delivers: reads, closes and reschedules messages, but can neither forge nor change one
operator    a relay that also redrives, replays and discards: moves messages back into the outbox
viewer      sees everything but payloads
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from pillarbox.errors import ConfigError
from pillarbox.message import Names

__all__ = ["Right", "Role", "build_grants", "list_rights"]

Role = Literal["writer", "consumer", "relay", "operator", "viewer"]

_WRITTEN: Final = (
    "message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject, "
    "correlation_id, causation_id, event_time, available_at, waits"
)
_SHOWN: Final = (
    "id, message_id, destination, partition, kind, type, topic, key, content_type, headers, source, subject, "
    "correlation_id, causation_id, event_time, created_at, available_at"
)
_SHOWN_INBOX: Final = "consumer, source, message_id, status, duplicates, attempts, last_error, created_at, status_at"

_WRITER: Final = ((f"insert ({_WRITTEN})", "outbox"),)
_CONSUMER: Final = (*_WRITER, ("select, insert, update", "inbox"))
# Retention locks rows before it deletes them, and locking needs the right to update some column.
_RELAY: Final = (
    ("select, delete, update (available_at, waits, attempts, last_error, status_at)", "outbox"),
    ("select, insert, delete, update (status_at)", "history"),
    ("select, insert, update, delete", "claim"),
    ("select, insert, update, delete", "lane"),
    ("select, insert, update, delete", "relay"),
    ("select, insert, update, delete", "destination"),
    ("select, insert, delete", "journal"),
    ("select, delete, update (status_at)", "inbox"),
    ("select", "schema"),
    ("select", "messages"),
)
_OPERATOR: Final = (
    *_RELAY,
    ("insert, update (destination)", "outbox"),
    ("update", "history"),
    ("update (status, attempts, last_error, message)", "inbox"),
)
_VIEWER: Final = (
    (f"select (tx, {_SHOWN}, waits, attempts, last_error, status_at)", "outbox"),
    (f"select ({_SHOWN}, attempts, last_error, status_at, status, relay_id)", "history"),
    (f"select ({_SHOWN}, waits, attempts, last_error, status_at, state)", "messages"),
    (f"select ({_SHOWN_INBOX})", "inbox"),
    *((("select", table)) for table in ("claim", "lane", "relay", "destination", "journal", "schema")),
)
_RIGHTS: Final[Mapping[Role, Sequence[tuple[str, str]]]] = {
    "writer": _WRITER,
    "consumer": _CONSUMER,
    "relay": _RELAY,
    "operator": _OPERATOR,
    "viewer": _VIEWER,
}

_PRIVILEGE: Final = re.compile(r"(\w+)(?: \(([^)]*)\))?")


class Right(NamedTuple):
    """One right on one table, or on one column of it."""

    table: str
    privilege: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.privilege}{'' if self.column is None else f' ({self.column})'} on {self.table}"


def list_rights(role: Role, *, names: Names) -> Iterator[Right]:
    """List every right that a role needs, column by column."""
    for privileges, table in _RIGHTS[role]:
        for privilege, columns in _PRIVILEGE.findall(privileges):
            for column in columns.split(", ") if columns else [None]:
                yield Right(names.table(table), privilege, column)


def build_grants(roles: Mapping[Role, str], *, names: Names) -> str:
    """Write GRANT statements for these database roles, which must exist. Running them twice changes nothing."""
    if not roles:
        listed = ", ".join(f"--{role}" for role in get_args(Role))
        raise ConfigError(f"No role was named, so there is nothing to grant; give at least one of {listed}.")
    return "\n".join(line for role, grantee in roles.items() for line in _grant_role(role, grantee, names)) + "\n"


def _grant_role(role: Role, grantee: str, names: Names) -> Iterator[str]:
    quoted = _quote(grantee)
    yield f"-- {role}"
    if names.schema is not None:
        yield f'grant usage on schema "{names.schema}" to {quoted};'
    for privileges, table in _RIGHTS[role]:
        yield f"grant {privileges} on {names.table(table)} to {quoted};"


def _quote(role: str) -> str:
    if not role or "\0" in role or len(role.encode()) > 63:
        raise ConfigError("A role's name is 1 to 63 bytes long, without a NUL; check the name after the option.")
    doubled = role.replace('"', '""')
    return f'"{doubled}"'
