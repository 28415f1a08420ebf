"""What is written and delivered: parcels, counted up for each key, that say how the consumer is to treat them."""

from __future__ import annotations

from typing import Final

import msgspec

from pillarbox.events import Types
from pillarbox.message import Names
from pillarbox.outbox import Outbox
from pillarbox.routes import Route

__all__ = ["DESTINATION", "GRAVEYARD", "POISONOUS", "TYPES", "UNROUTED", "WRITER", "Parcel", "outbox", "parcel"]

DESTINATION: Final = "consumer"
GRAVEYARD: Final = "graveyard"
"""The dead-letter destination."""
TOPIC: Final = "parcels"
UNROUTED: Final = "nobody-wants-these"
POISONOUS: Final = "k7/1"
"""The message that kills, in the one story that has such a message."""
WRITER: Final = "w"
"""The key of the parcels that a writer who dies has written."""
TYPES: Final = Types()


@TYPES.event("crash.parcel", topic=TOPIC, key="key", subject="subject")
class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """The committed parcels of a key are numbered 1, 2, 3 and so on."""

    subject: str
    """Key and number: `k3/1`. No two parcels share it."""
    key: str
    number: int
    refuse: int = 0
    """So many times the consumer answers 500."""
    reject: int = 0
    """So many times it answers 422: never again."""
    silent: int = 0
    """So many times it takes it and does not answer."""
    slow: float = 0.005
    """Seconds until its answer."""
    routed: bool = True
    """False: no route wants it."""


def parcel(key: str, number: int, **treatment: float) -> Parcel:
    """The parcel of that key and number."""
    return msgspec.convert(
        {"subject": f"{key}/{number}", "key": key, "number": number, **treatment}, Parcel, strict=False
    )


def outbox(names: Names) -> Outbox:
    """The writers' outbox."""
    routes = [Route(to=DESTINATION, topic=TOPIC)]
    return Outbox(routes=routes, source="/crash", schema=names.schema, prefix=names.prefix, types=TYPES)
