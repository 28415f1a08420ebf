"""From the server's replies to what a consumer handles. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pillarbox.cloudevents import REDIS
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.identity import identity
from pillarbox.transports.redis.entries import DATA

__all__ = ["Claimed", "Delivery", "Read", "claimed", "ids_in", "place", "read", "received_of"]

_VERSION: Final = f"{REDIS.prefix}specversion"
_JSON: Final = "application/json"


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """An entry in our hands. The same entry may come again, as another delivery."""

    id: str
    fields: Sequence[bytes]
    """Names and values by turns."""
    redelivered: bool


class Read(NamedTuple):
    """What a read brought."""

    deliveries: list[Delivery]
    trimmed: list[str]
    """Entries that are to be handled, and no longer there."""


class Claimed(NamedTuple):
    """What taking over brought."""

    cursor: str
    """Where to go on. `0-0`: all was looked at."""
    deliveries: list[Delivery]
    trimmed: list[str]


def read(reply: Any, *, redelivered: bool) -> Read:
    """The reply to XREADGROUP on one stream."""
    entries = reply[0][1] if reply else []
    return Read(_deliveries(entries, redelivered), [id.decode() for id, fields in entries if fields is None])


def claimed(reply: Any) -> Claimed:
    """The reply to XAUTOCLAIM. Before Redis 7 an entry that is no longer there is nothing, without its id."""
    cursor, entries, *deleted = reply
    trimmed = [id.decode() for id in deleted[0]] if deleted else []
    return Claimed(cursor.decode(), _deliveries([entry for entry in entries if entry], True), trimmed)


def ids_in(reply: Any) -> list[str]:
    """The reply to XPENDING over a range."""
    return [one[0].decode() for one in reply]


def place(id: str) -> tuple[int, int]:
    """By which ids are in order."""
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number)


def _deliveries(entries: Iterable[Any], redelivered: bool) -> list[Delivery]:
    return [Delivery(id.decode(), fields, redelivered) for id, fields in entries if fields is not None]


def received_of(delivery: Delivery, *, stream: str, token: object) -> Received:
    """The entry as it came. A plain one is known by its place in the stream."""
    fields = dict(zip(*[iter(delivery.fields)] * 2, strict=True))
    headers: dict[str, object] = {_text(name): _value(value) for name, value in fields.items()}
    body = fields.get(DATA.encode())
    if body is not None:
        del headers[DATA]
    elif _VERSION not in headers:  # a producer that has fields, and no payload
        body, headers = msgspec.json.encode(headers), {"content-type": _JSON, **headers}
    return Received(
        headers=headers,
        body=body or b"",
        binding=REDIS,
        plain=Plain(
            message_id=identity(f"{stream}/{delivery.id}"), source=f"redis:{stream}", type="redis", topic=stream
        ),
        redelivered=delivery.redelivered,
        token=token,
    )


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _value(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
