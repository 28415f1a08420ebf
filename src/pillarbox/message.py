"""The message and the words that describe it: plain frozen values, no I/O."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.errors import IllegalTransition

__all__ = [
    "PARTITIONS",
    "SKIPPED_DESTINATION",
    "Kind",
    "Message",
    "State",
    "Waits",
    "new_message_id",
    "partition_of",
]

PARTITIONS: Final = 64
"""How many buckets keys hash into. A constant: writers that disagreed would break order in silence."""

SKIPPED_DESTINATION: Final = "_skipped"
"""Reserved: rows that no route wanted. The relay closes them as `skipped`. Users' names start with a letter."""


class Kind(StrEnum):
    """What a message is for: an event goes to everyone interested, a command to exactly one."""

    EVENT = "event"
    COMMAND = "command"


class Waits(StrEnum):
    """Why an open message is not fresh."""

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
        """Nothing more will happen to it by itself."""
        return self not in (State.PENDING, State.SENDING)

    def check(self, to: State, *, message: object) -> None:
        """Refuse a step that the life of a message does not have."""
        if to not in _FOLLOWS[self]:
            raise IllegalTransition(
                f"Message {message} is {self.value} and cannot become {to.value}; "
                f"from {self.value} it can become {_listed(_FOLLOWS[self])}."
            )


_FOLLOWS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.PENDING: frozenset({State.PENDING, State.SENDING, State.FAILED, State.SKIPPED, State.DISCARDED}),
        State.SENDING: frozenset({State.DELIVERED, State.PENDING, State.FAILED}),
        State.DELIVERED: frozenset({State.PENDING}),
        State.FAILED: frozenset({State.PENDING, State.DISCARDED}),
        State.SKIPPED: frozenset({State.PENDING}),
        State.DISCARDED: frozenset({State.PENDING}),
    }
)


def _listed(states: frozenset[State]) -> str:
    return " or ".join(state.value for state in State if state in states)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message on its way to one destination.

    The writer fills everything down to `event_time`; the store adds the rest. Fields stand in the order of
    the tables' columns, so a row becomes a message without a mapping.
    """

    id: int
    """The order. 0 until the store has written it."""
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
    """When it happened. Never changes."""
    created_at: datetime | None = None
    """When the row was written. Never changes."""
    available_at: datetime | None = None
    """The earliest next attempt; None is at once."""
    waits: Waits | None = None
    attempts: int = 0
    last_error: str | None = None
    status_at: datetime | None = None
    """The last change."""
    state: State = State.PENDING
    payload_kept: bool = True
    """False for a closed message whose payload the store was told not to keep."""


def partition_of(key: str | None, message_id: UUID) -> int:
    """The bucket of a key: the first byte of its md5, modulo 64; of the message id where there is no key.

    Any SQL dialect can compute it too, for example
    `get_byte(decode(md5(key), 'hex'), 0) & 63`.
    """
    text = str(message_id) if key is None else key
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()[0] & (PARTITIONS - 1)


_decoded_uuid: Final = msgspec.msgpack.Decoder(UUID).decode
"""From MessagePack's 16 bytes: a third of the time of `UUID(int=…)`, and an id is made for every message."""


def _fallback_uuid7() -> UUID:
    """UUIDv7 for Pythons whose `uuid` lacks it: 48 bits of milliseconds, the rest random."""
    random = int.from_bytes(os.urandom(10)) & 0x0FFF_3FFF_FFFF_FFFF_FFFF | 0x7000_8000_0000_0000_0000
    number = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80 | random
    return _decoded_uuid(b"\xc4\x10" + number.to_bytes(16))


def _uuid7() -> Callable[[], UUID]:
    if sys.version_info >= (3, 14):
        from uuid import uuid7

        return uuid7
    return _fallback_uuid7


new_message_id: Final = _uuid7()
"""A new UUIDv7: unique everywhere, sorted roughly by time."""
