"""The message, its states, its limits and its names: plain frozen values, no I/O."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.errors import ConfigError, IllegalTransition, PublishError

__all__ = [
    "MAX_HEADERS",
    "MAX_LABELS",
    "MAX_NAME",
    "MAX_PAYLOAD",
    "MAX_RAW",
    "MAX_TEXT",
    "PARTITIONS",
    "RESERVED_HEADERS",
    "RESERVED_PREFIXES",
    "SKIPPED_DESTINATION",
    "TABLES",
    "Kind",
    "Message",
    "Names",
    "State",
    "Waits",
    "check_destination",
    "check_headers",
    "check_labels",
    "check_text",
    "compute_partition",
    "is_label",
    "is_type_name",
    "new_message_id",
    "to_text",
]

PARTITIONS: Final = 64
"""Number of buckets that keys hash into. A constant: writers that disagreed would break order in silence."""

SKIPPED_DESTINATION: Final = "_skipped"
"""Reserved for rows that no route matched. The relay closes them as `skipped`. Users' names start with a letter."""


class Kind(StrEnum):
    """Purpose of a message: an event goes to everyone interested, a command to exactly one."""

    EVENT = "event"
    COMMAND = "command"


class Waits(StrEnum):
    """Reason why an open message is not fresh."""

    DEFERRED = "deferred"
    """Its writer asked for a later time. Does not block its key."""
    RETRY = "retry"
    """It goes (again) at `available_at`, and blocks its key until then."""
    PARKED = "parked"
    """It waits behind an earlier message of its key."""
    HELD = "held"
    """It failed, and blocks its key until a person acts. Shown as failed."""


class State(StrEnum):
    """The states people see."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
    SKIPPED = "skipped"
    DISCARDED = "discarded"

    @property
    def is_closed(self) -> bool:
        """True when nothing more happens to the message by itself."""
        return self not in (State.PENDING, State.SENDING)

    def check(self, to: State, *, message: object) -> None:
        """Raise `IllegalTransition` for a step that the life of a message does not have."""
        if to not in _FOLLOWS[self]:
            possible = " or ".join(state.value for state in State if state in _FOLLOWS[self])
            raise IllegalTransition(
                f"Message {message} is {self.value} and cannot become {to.value}; "
                f"from {self.value} it can become {possible}."
            )


_FOLLOWS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.PENDING: frozenset({State.PENDING, State.SENDING, State.FAILED, State.SKIPPED, State.DISCARDED}),
        State.SENDING: frozenset({State.DELIVERED, State.PENDING, State.FAILED}),
        State.DELIVERED: frozenset({State.PENDING}),
        State.FAILED: frozenset({State.PENDING, State.DISCARDED}),
        State.SKIPPED: frozenset({State.PENDING, State.DISCARDED}),
        State.DISCARDED: frozenset({State.PENDING}),
    }
)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message on its way to one destination.

    The writer fills everything down to `event_time`; the store adds the rest. Fields stand in the order of
    the tables' columns, so a row becomes a message without a mapping.
    """

    id: int
    """Defines the order. 0 until the store has written the row."""
    message_id: UUID
    destination: str
    partition: int
    kind: Kind
    type: str
    topic: str
    key: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    source: str
    subject: str | None
    correlation_id: str
    causation_id: str | None
    event_time: datetime
    """Time of the event itself. Never changes."""
    created_at: datetime | None = None
    """Time of the insert. Never changes."""
    available_at: datetime | None = None
    """Time of the next attempt at the earliest; None is at once."""
    waits: Waits | None = None
    attempts: int = 0
    last_error: str | None = None
    status_at: datetime | None = None
    """Time of the last change of state."""
    state: State = State.PENDING
    payload_kept: bool = True
    """False for a closed message whose payload the store does not keep, by its settings."""
    unreadable: str | None = None
    """Reason why its row cannot be read as a message: it is never sent. Fields that cannot be read have stand-ins."""
    raw: Mapping[str, bytes] | None = None
    """What stands in the columns that cannot be read, byte by byte and cut at `MAX_RAW`. It may hold secrets."""


def compute_partition(key: str | None, message_id: UUID) -> int:
    """Compute the bucket of a key: the first byte of its md5, modulo 64; of the message id where there is no key.

    Any SQL dialect can compute it too, for example
    `get_byte(decode(md5(key), 'hex'), 0) & 63`.
    """
    text = str(message_id) if key is None else key
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()[0] & (PARTITIONS - 1)


_decode_uuid: Final = msgspec.msgpack.Decoder(UUID).decode
"""Decodes MessagePack's 16 bytes in a third of the time of `UUID(int=…)`; every message needs a new id."""


def _fallback_uuid7() -> UUID:
    """Make a UUIDv7 on Pythons whose `uuid` lacks it: 48 bits of milliseconds, the rest random."""
    random = int.from_bytes(os.urandom(10)) & 0x0FFF_3FFF_FFFF_FFFF_FFFF | 0x7000_8000_0000_0000_0000
    number = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80 | random
    return _decode_uuid(b"\xc4\x10" + number.to_bytes(16))


def _find_uuid7() -> Callable[[], UUID]:
    if sys.version_info >= (3, 14):
        from uuid import uuid7

        return uuid7
    return _fallback_uuid7


new_message_id: Final = _find_uuid7()
"""Makes a new UUIDv7: unique everywhere, sorted roughly by time."""


MAX_RAW: Final = 64 * 1024
"""Bytes that a message shows of a column that cannot be read. The row keeps all of them."""
MAX_PAYLOAD: Final = 1024 * 1024
"""Default limit of an encoded payload in bytes; an outbox may set another."""
MAX_NAME: Final = 255
"""Limit of a type, a topic or a content type in bytes."""
MAX_TEXT: Final = 1024
"""Limit of a key, subject, source or id in bytes: an index entry can hold it on every store."""
MAX_HEADERS: Final = 8 * 1024
"""Limit of all header names and values of one message in bytes: HTTP servers take that much."""

RESERVED_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length",
        "content-type", "cookie", "date", "expect", "host", "keep-alive", "proxy-authorization", "te", "traceparent",
        "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip
"""Names that belong to the wire or to the trace context, in lower case: refused at publish, dropped on receipt."""
RESERVED_PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_", "webhook-")

_TYPE_NAME: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_.:/-]{{0,{MAX_NAME - 1}}}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_type_name(name: object) -> bool:
    """Return True for a letter, then letters, digits and `_ . : / -`."""
    return isinstance(name, str) and _TYPE_NAME.fullmatch(name) is not None


def check_text(text: object, *, what: str, limit: int) -> str:
    """Return the text if it has 1 to `limit` bytes and no control characters; raise `PublishError` otherwise."""
    # Almost every text takes this branch; the tests below only find the reason to refuse the others.
    if type(text) is str and text.isascii() and text.isprintable() and 0 < len(text) <= limit:
        return text
    if not isinstance(text, str):
        raise PublishError(f"The {what} is of type {type(text).__name__}; give a str.")
    if not text:
        raise PublishError(f"The {what} is empty; leave it out, or give it at least one character.")
    if _UNUSABLE.search(text):
        raise PublishError(f"The {what} holds a control character or half a surrogate pair; remove it.")
    if len(text.encode()) > limit:
        raise PublishError(f"The {what} is {len(text.encode())} bytes long; the limit is {limit}.")
    return str.__str__(text)


def to_text(value: object, *, what: str) -> str | None:
    """Convert a str, int, UUID, or an Enum of them to text; None stays None. Raise `PublishError` for anything else.

    Other objects are refused because their `str()` may change from one process to the next, and a key that does so
    would break order in silence.
    """
    if type(value) is str:
        return check_text(value, what=what, limit=MAX_TEXT)
    if type(value) is UUID:
        return msgspec.to_builtins(value)  # type: ignore[no-any-return]  # three times faster than str()
    if value is None:
        return None
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (UUID, int)):
        value = str(value)
    if not isinstance(value, str):
        raise PublishError(f"The {what} is of type {type(value).__name__}; give a str, int, UUID or Enum.")
    return check_text(value, what=what, limit=MAX_TEXT)


def check_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """Copy the headers; raise `PublishError` for a name or value that some broker would not carry unchanged."""
    if not isinstance(headers, Mapping):
        raise PublishError(f"The headers are of type {type(headers).__name__}; give a dict of texts.")
    checked: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in headers.items():
        _check_header_name(name)
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise PublishError(
                f"The value of header {name!r} is not usable: give a str of printable ASCII without outer spaces, "
                "and encode anything else yourself."
            )
        if name.lower() in seen:
            raise PublishError(f"The header {name!r} is given twice, in different letter case; keep one.")
        seen.add(name.lower())
        checked[name] = value
    size = sum(len(name) + len(value) for name, value in checked.items())
    if size > MAX_HEADERS:
        raise PublishError(f"The headers take {size} bytes; the limit is {MAX_HEADERS}. Put the rest into the payload.")
    return checked


def _check_header_name(name: object) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise PublishError(
            f"The header name {name!r} is not usable: write a letter or digit, then at most 99 letters, digits, "
            "'.', '_' or '-'."
        )
    if name.lower() in RESERVED_HEADERS or name.lower().startswith(RESERVED_PREFIXES):
        raise PublishError(f"The header {name!r} is reserved for the wire; choose another name.")


TABLES: Final = (
    "outbox", "history", "claim", "lane", "relay", "destination", "journal", "inbox", "rollup", "schema", "messages",
    "probe", "sleeper", "wake", "history_extend", "history_detach", "history_remove",
    "slot", "consumer", "own_inbox", "shown_outbox", "shown_history", "shown_inbox",
)  # fmt: skip
"""Names after the prefix. `messages` is the view. The second line is PostgreSQL's: a table, the function of a trigger,
and functions that add and remove partitions of history. The last line is MySQL's: rows for key locks, the consumers of
each account, and views that consumers and viewers use in place of tables.
"""

_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]*")
_MAX_IDENTIFIER: Final = 63 - len("outbox_blocked_idx")
_DESTINATION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_PARTITION_NAME: Final = re.compile(r"history_(default|p\d+)")
_DROPPED_INDEX: Final = re.compile(r"\bdrop index (?:concurrently )?(?:if exists )?\Z", re.IGNORECASE)
_DEFAULT_NAME: Final = re.compile(r"\bpillarbox_(\w+)\b")


class Names(msgspec.Struct, frozen=True):
    """Schema and prefix of the tables. Both are validated, so they can stand in SQL."""

    schema: str | None = None
    prefix: str = "pillarbox_"

    def __post_init__(self) -> None:
        if self.schema is not None:
            _check_identifier(self.schema, what="schema")
        _check_identifier(self.prefix, what="table prefix")

    def table(self, name: str, *, quote: str = '"') -> str:
        """Return the quoted, qualified name of one of our tables, indexes or functions. MySQL quotes with backticks."""
        table = f"{quote}{self.prefix}{name}{quote}"
        return table if self.schema is None else f"{quote}{self.schema}{quote}.{table}"

    def bare(self, name: str) -> str:
        """Return the name without its schema, for places that do not take one (an index in CREATE INDEX)."""
        return f"{self.prefix}{name}"

    def is_ours(self, name: str) -> bool:
        """Return True for the name, without its schema, of one of our tables, or of a partition."""
        if name in {self.bare(table) for table in TABLES}:
            return True
        return name.startswith(self.prefix) and _PARTITION_NAME.fullmatch(name[len(self.prefix) :]) is not None

    def qualify(self, sql: str, *, quote: str = '"') -> str:
        """Replace the default names in SQL by ours.

        `pillarbox_outbox` becomes the qualified name. An object that is created inside its table's schema
        (an index, a constraint) is written `pillarbox_outbox_late_idx` and keeps no schema. An index that is dropped
        has one: it is looked for in the search path otherwise. MySQL looks in the table that it names.
        """

        def qualify_name(match: re.Match[str]) -> str:
            name = match.group(1)
            is_dropped = (
                quote == '"' and _DROPPED_INDEX.search(sql, max(0, match.start() - 48), match.start()) is not None
            )
            in_schema = name in TABLES or is_dropped
            return self.table(name, quote=quote) if in_schema else f"{quote}{self.bare(name)}{quote}"

        return _DEFAULT_NAME.sub(qualify_name, sql)


def _check_identifier(name: str, *, what: str) -> None:
    given: object = name  # a caller without types may pass anything
    if not isinstance(given, str) or not _IDENTIFIER.fullmatch(name) or len(name) > _MAX_IDENTIFIER:
        raise ConfigError(
            f"The {what} {name!r} is not usable: write at most {_MAX_IDENTIFIER} lower-case letters, digits and "
            "underscores, not starting with a digit."
        )


def check_destination(name: str) -> str:
    """Return a destination's name, or raise `ConfigError`. It ends up in rows, logs and metric labels."""
    given: object = name  # a caller without types may pass anything
    if not isinstance(given, str) or (name != SKIPPED_DESTINATION and not _DESTINATION.fullmatch(name)):
        raise ConfigError(
            f"The destination {name!r} is not usable: write a letter, then at most 99 letters, digits, '_', '.' or '-'."
        )
    return name


MAX_LABELS: Final = 32
"""Labels of one relay. Every relay reads those of all others, twice a second."""
_MAX_LABEL: Final = 255
_LABEL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}")


def is_label(name: object, value: object) -> bool:
    """Return whether a relay may have this label: a short name, and a text of printable characters."""
    return (
        isinstance(name, str)
        and _LABEL_NAME.fullmatch(name) is not None
        and isinstance(value, str)
        and value.isprintable()
        and 0 < len(value.encode()) <= _MAX_LABEL
    )


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a relay, or raise `ConfigError`. They end up in rows, on screens and in JSON."""
    if len(labels) > MAX_LABELS:
        raise ConfigError(f"A relay has at most {MAX_LABELS} labels, and {len(labels)} are given: leave some out.")
    for name, value in labels.items():
        if not is_label(name, value):
            raise ConfigError(
                f"The label {name!r} is not usable: its name is a letter, then at most 62 letters, digits, '_', '.', "
                f"'/' or '-'; its value a text of 1 to {_MAX_LABEL} bytes without control characters."
            )
    return dict(labels)
