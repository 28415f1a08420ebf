"""The fewest rights that each role of a system needs on PostgreSQL, as SQL text. Connects to nothing.

writer      adds messages to the outbox, and can neither read nor change one
consumer    a writer that also records what it has seen, in the inbox: in the rows of its own consumers alone, where
            these are named
relay       delivers: reads, closes, reschedules and forwards messages, but can neither forge nor change one
operator    a relay that also redrives, replays and discards: moves messages back into the outbox
viewer      sees everything but payloads
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from pillarbox.errors import ConfigError
from pillarbox.message import Names

__all__ = [
    "Right",
    "Role",
    "build_grants",
    "build_portable_grants",
    "check_consumers",
    "list_rights",
    "quote_role",
]

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
_CONSUMER: Final = (
    *_WRITER,
    ("select, insert, update (status, duplicates, attempts, last_error, message, created_at, status_at)", "inbox"),
)
# Retention locks rows before it deletes them, and locking needs the right to update some column.
_RELAY: Final = (
    ("select, delete, update (destination, available_at, waits, attempts, last_error, status_at)", "outbox"),
    ("update (due_at, fingerprint)", "outbox"),
    ("select, insert, delete, update (status_at)", "history"),
    ("select, insert, update, delete", "claim"),
    ("select, insert, update, delete", "lane"),
    ("select, insert, update, delete", "relay"),
    ("select, insert, update, delete", "sleeper"),
    ("select, insert, update, delete", "destination"),
    ("select", "probe"),
    ("select, insert, delete", "journal"),
    ("select, insert, update, delete", "rollup"),
    ("select, delete, update (status_at)", "inbox"),
    ("select", "schema"),
    ("select", "messages"),
)
_OPERATOR: Final = (
    *_RELAY,
    ("insert", "outbox"),
    ("update", "history"),
    ("insert, update", "probe"),
    ("update (status, attempts, last_error, message)", "inbox"),
)
_VIEWER: Final = (
    (f"select (tx, {_SHOWN}, waits, attempts, last_error, status_at, due_at, fingerprint)", "outbox"),
    (f"select ({_SHOWN}, attempts, last_error, status_at, status, relay_id, fingerprint)", "history"),
    (f"select ({_SHOWN}, waits, attempts, last_error, status_at, state)", "messages"),
    (f"select ({_SHOWN_INBOX})", "inbox"),
    *(
        (("select", table))
        for table in ("claim", "lane", "relay", "sleeper", "destination", "probe", "journal", "rollup", "schema")
    ),
)
_FUNCTIONS: Final = (
    "history_extend()", "history_detach(bigint, bigint[], jsonb)", "history_remove(bigint, bigint, integer)",
)  # fmt: skip
"""Functions that add and drop partitions of history, for whoever cleans it up. They do nothing else to tables."""
_CLEANERS: Final[Sequence[Role]] = ("relay", "operator")
_RIGHTS: Final[Mapping[Role, Sequence[tuple[str, str]]]] = {
    "writer": _WRITER,
    "consumer": _CONSUMER,
    "relay": _RELAY,
    "operator": _OPERATOR,
    "viewer": _VIEWER,
}

_PRIVILEGE: Final = re.compile(r"(\w+)(?: \(([^)]*)\))?")


class Right(NamedTuple):
    """One right on one table, or on one column of it, or on one function."""

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
    for function in _FUNCTIONS if role in _CLEANERS else ():
        yield Right(_write_function(function, names), "execute")


def build_portable_grants(roles: Mapping[Role, str], *, names: Names, consumers: Sequence[str] | None = None) -> str:
    """Write GRANT statements for tables with `dialect=portable`: slots in place of locks, and no functions."""
    lines = build_grants(roles, names=names, consumers=consumers).splitlines()
    kept = [line.replace("select (tx, ", "select (") for line in lines if "on function " not in line]
    slot = names.table("slot")
    kept += [f"grant select, update on {slot} to {quote_role(roles[role])};" for role in _CLEANERS if role in roles]
    return "\n".join(kept) + "\n"


def build_grants(roles: Mapping[Role, str], *, names: Names, consumers: Sequence[str] | None = None) -> str:
    """Write GRANT statements for these database roles, which must exist. Running them twice changes nothing.

    The consumer's role may write the inbox rows of `consumers` alone. None lets it write those of every consumer.
    """
    if not roles:
        listed = ", ".join(f"--{role}" for role in get_args(Role))
        raise ConfigError(f"No role was named, so there is nothing to grant; give at least one of {listed}.")
    lines = [line for role, grantee in roles.items() for line in _grant_role(role, grantee, names)]
    if (grantee := roles.get("consumer")) is not None:
        inbox = names.table("inbox")
        # An older release granted more: the keys of its rows too. Before the grants, for a role may be named twice.
        lines.insert(0, f"revoke insert, update on {inbox} from {quote_role(grantee)};")
        lines.append(_write_policy(quote_role(grantee), inbox, check_consumers(consumers)))
    return "\n".join(lines) + "\n"


def check_consumers(consumers: Sequence[str] | None) -> Sequence[str] | None:
    """Return the consumers whose rows a role may write; None for all of them."""
    if consumers is None:
        return None
    if not consumers or not all(consumers) or any("\0" in name for name in consumers):
        raise ConfigError("A consumer's role needs the names of its consumers, without a NUL, or none for all of them.")
    return sorted(set(consumers))


def _write_policy(role: str, inbox: str, consumers: Sequence[str] | None) -> str:
    """Write the statement that restricts a role to the rows of its consumers, or lifts that.

    One statement, so that there is no moment without the policy. The policy for everyone takes nothing away from
    roles that have rights on the table; a restrictive one does.
    """
    policy = f"own_{hashlib.sha256(role.encode()).hexdigest()[:16]}"
    # Only where there is one: to drop it takes a lock that waits for every transaction on the inbox.
    known = f"select from pg_policy where polrelid = '{inbox}'::regclass and polname = '{policy}'"
    lines = [f"if exists ({known}) then", f"    drop policy {policy} on {inbox};", "end if;"]
    if consumers is not None:
        own = ", ".join(_to_literal(name) for name in consumers)
        lines += [
            f"drop policy if exists everyone on {inbox};",
            f"create policy everyone on {inbox} using (true);",
            f"create policy {policy} on {inbox} as restrictive to {role} using (consumer in ({own}));",
            f"alter table {inbox} enable row level security;",
        ]
    body = "\n    ".join(lines)
    tag = "$own$"
    while tag in body:
        tag = f"${tag.strip('$')}_$"
    return f"do {tag}\nbegin\n    {body}\nend\n{tag};"


def _to_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _grant_role(role: Role, grantee: str, names: Names) -> Iterator[str]:
    quoted = quote_role(grantee)
    yield f"-- {role}"
    if names.schema is not None:
        yield f'grant usage on schema "{names.schema}" to {quoted};'
    for privileges, table in _RIGHTS[role]:
        yield f"grant {privileges} on {names.table(table)} to {quoted};"
    for function in _FUNCTIONS if role in _CLEANERS else ():
        yield f"grant execute on function {_write_function(function, names)} to {quoted};"


def _write_function(function: str, names: Names) -> str:
    name, _, arguments = function.partition("(")
    return f"{names.table(name)}({arguments}"


def quote_role(role: str) -> str:
    """Quote the name of a role; raise `ConfigError` for one that PostgreSQL cannot have."""
    if not role or "\0" in role or len(role.encode()) > 63:
        raise ConfigError("A role's name is 1 to 63 bytes long, without a NUL; check the name after the option.")
    doubled = role.replace('"', '""')
    return f'"{doubled}"'
