"""The messages of the crash matrix and the chain: numbered per key, with instructions for the consumer."""

from __future__ import annotations

from typing import Final

import msgspec

from pillarbox.events import Types
from pillarbox.message import Names
from pillarbox.outbox import Outbox
from pillarbox.routes import Route

__all__ = [
    "DEAD_LETTERS",
    "DESTINATION",
    "POISON",
    "TYPES",
    "UNROUTED",
    "WRITER_KEY",
    "NumberedEvent",
    "build_event",
    "build_outbox",
]

DESTINATION: Final = "consumer"
DEAD_LETTERS: Final = "dead-letters"
"""The dead-letter destination."""
TOPIC: Final = "numbered"
UNROUTED: Final = "unrouted"
"""A topic without a route."""
POISON: Final = "k7/1"
"""The message that kills relays, in the one scenario that has such a message."""
WRITER_KEY: Final = "w"
"""The key of the messages that a killed writer wrote."""
TYPES: Final = Types()


@TYPES.event("proof.numbered", topic=TOPIC, key="key", subject="subject")
class NumberedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The committed events of a key are numbered 1, 2, 3 and so on."""

    subject: str
    """Key and number: `k3/1`. No two events share it."""
    key: str
    number: int
    refuse: int = 0
    """How many times the consumer answers 500."""
    reject: int = 0
    """How many times it answers 422: do not retry."""
    silent: int = 0
    """How many times it accepts the message and does not answer."""
    slow: float = 0.005
    """Seconds until its answer."""
    routed: bool = True
    """False: no route matches it."""


def build_event(key: str, number: int, **treatment: float) -> NumberedEvent:
    """Build the event of that key and number."""
    return msgspec.convert(
        {"subject": f"{key}/{number}", "key": key, "number": number, **treatment}, NumberedEvent, strict=False
    )


def build_outbox(names: Names) -> Outbox:
    """Build the outbox that writers publish with."""
    routes = [Route(to=DESTINATION, topic=TOPIC)]
    return Outbox(routes=routes, source="/proof", schema=names.schema, prefix=names.prefix, types=TYPES)
