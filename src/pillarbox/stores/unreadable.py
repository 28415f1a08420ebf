"""Rows that others wrote and that break the rules of `publish`: what can be read of them, and the reason. Pure.

Every store decodes row by row. A row that cannot be decoded, or that breaks a rule which brokers or the ordering rely
on, becomes a `Message` with `unreadable` set, and stops nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from pillarbox.errors import PublishError
from pillarbox.message import (
    MAX_LABELS,
    MAX_NAME,
    MAX_RAW,
    MAX_TEXT,
    PARTITIONS,
    Kind,
    Message,
    State,
    Waits,
    check_headers,
    check_text,
    compute_partition,
    is_label,
)

__all__ = [
    "MAX_ATTEMPTS",
    "NO_ID",
    "NO_TIME",
    "clean_text",
    "decode_labels",
    "is_key_of_lane",
    "is_sound",
    "is_text",
    "rescue_message",
]

T = TypeVar("T")

NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for a time that no `datetime` can hold."""
NO_ID: Final = UUID(int=0)
"""Stands for a message id that is no UUID."""

MAX_ATTEMPTS: Final = 1_000_000
"""A higher count of attempts or strikes is none that a relay wrote."""
_MAX_SHOWN: Final = 60
_MAX_REASON: Final = 500
_REMEMBERED: Final = 32_768
"""Keys whose partition is remembered, a few megabytes: each is checked where it waits, is due and is read."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile("[\udc80-\udcff]")
"""Stand-ins for bytes that are no UTF-8."""
_TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})
"""Reserved names that the outbox itself writes."""


_sound_names: set[tuple[str, ...]] = set()
"""Names that were looked at, and keep the rules."""


@lru_cache(maxsize=_REMEMBERED)
def _find_partition(key: str) -> int:
    """Return the partition of a key; raise `PublishError` for one that `publish` does not take."""
    return compute_partition(check_text(key, what="key", limit=MAX_TEXT), NO_ID)


def is_key_of_lane(key: str, partition: int) -> bool:
    """Return whether a stored key is one that `publish` takes, and this partition its own."""
    try:
        return _find_partition(key) == partition
    except PublishError:
        return False


def is_sound(message: Message) -> bool:
    """Return whether a decoded message keeps the rules of `publish`. Raises for values of a wrong type.

    Every message passes here, so names that repeat are looked at once. What is left of the usual case is one text.
    """
    names = (message.type, message.topic, message.content_type, message.source, message.destination)
    if names not in _sound_names:
        _check_names(names)
    own_id = message.correlation_id
    if not (own_id.isascii() and own_id.isprintable() and 0 < len(own_id) <= MAX_TEXT):
        check_text(own_id, what="", limit=MAX_TEXT)
    if message.subject is not None:
        check_text(message.subject, what="", limit=MAX_TEXT)
    if message.causation_id is not None:
        check_text(message.causation_id, what="", limit=MAX_TEXT)
    if message.headers:
        _check_headers(message.headers)
    key, attempts = message.key, message.attempts
    event_time: datetime | None = message.event_time
    return (
        (0 <= message.partition < PARTITIONS if key is None else _find_partition(key) == message.partition)
        and type(attempts) is int
        and 0 <= attempts <= MAX_ATTEMPTS
        and type(message.payload) is bytes
        # Each by itself: `in` would compare every time with None.
        and event_time is not None
        and message.created_at is not None
        and message.status_at is not None
    )


def _check_names(names: tuple[str, ...]) -> None:
    type_, topic, content_type, source, destination = names
    for text in (type_, topic, content_type):
        check_text(text, what="", limit=MAX_NAME)
    for text in (source, destination):
        check_text(text, what="", limit=MAX_TEXT)
    if len(_sound_names) >= _REMEMBERED:
        _sound_names.clear()
    _sound_names.add(names)


def _check_headers(headers: Mapping[str, str]) -> None:
    check_headers({name: value for name, value in headers.items() if name not in _TRACE_HEADERS})
    for name in _TRACE_HEADERS & headers.keys():
        check_text(headers[name], what=f"header {name!r}", limit=MAX_TEXT)


def clean_text(value: object) -> str:
    """Return any stored value as text that can be shown and encoded."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode()


def _to_bytes(value: object) -> bytes:
    """Return a stored value as the bytes that stand in its column, as far as the driver shows them."""
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-8", "surrogateescape" if _ESCAPED.search(text) else "surrogatepass")


def decode_labels(stored: Any) -> dict[str, str]:
    """Decode the labels of a relay's row, which may be anything: what no relay would write is left out."""
    if stored is None:
        return {}
    try:
        labels = msgspec.json.decode(stored)
    except Exception:  # whatever it is, the relay has no labels and is alive all the same
        return {}
    found = labels.items() if isinstance(labels, dict) else ()
    sound = sorted((name, value) for name, value in found if is_label(name, value))
    return dict(sound[:MAX_LABELS])


def is_text(value: object) -> bool:
    """Return whether a stored value is a text that every database can take back."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def rescue_message(
    row: Sequence[Any],
    *,
    to_time: Callable[[Any], datetime | None],
    to_uuid: Callable[[Any], UUID] = lambda value: value,
) -> Message:
    """Build a message from a row that could not be decoded as it is, with what can be read of it and the reason.

    The row has the columns of the outbox in their order, and maybe the state. `to_time` and `to_uuid` raise, or return
    None, for a value that is none.
    """
    reader = _RowReader(row, to_time)
    id_, _, _, partition, *_ = row
    message = Message(
        id_,
        reader.convert(1, "message_id", to_uuid, "is no UUID", instead=NO_ID),
        reader.text(2, "destination", MAX_TEXT),
        partition,
        reader.member(4, "kind", Kind, Kind.EVENT),
        reader.text(5, "type", MAX_NAME),
        reader.text(6, "topic", MAX_NAME),
        reader.key(7, partition),
        reader.payload(8),
        reader.text(9, "content_type", MAX_NAME),
        reader.headers(10),
        reader.text(11, "source", MAX_TEXT),
        reader.optional_text(12, "subject", MAX_TEXT),
        reader.text(13, "correlation_id", MAX_TEXT),
        reader.optional_text(14, "causation_id", MAX_TEXT),
        reader.time(15, "event_time"),
        reader.time(16, "created_at"),
        reader.optional_time(17, "available_at"),
        reader.member(18, "waits", Waits, None),
        reader.attempts(19),
        None if row[20] is None else clean_text(row[20]),
        reader.time(21, "status_at"),
        State.PENDING if len(row) < 23 else State(row[22]),
        row[8] is not None,
    )
    return msgspec.structs.replace(message, unreadable=reader.reason, raw=reader.raw) if reader.faults else message


class _RowReader:
    """Reads the columns of one row, and collects what is wrong with them."""

    def __init__(self, row: Sequence[Any], to_time: Callable[[Any], datetime | None]) -> None:
        self._row = row
        self._to_time = to_time
        self.faults: list[str] = []
        self.raw: dict[str, bytes] = {}
        """Column to what stands in it, for those that cannot be read."""

    def _blame(self, index: int, column: str, fault: str) -> None:
        self.faults.append(fault)
        if (value := self._row[index]) is not None:
            self.raw[column] = _to_bytes(value)[:MAX_RAW]

    @property
    def reason(self) -> str:
        text = f"unreadable row: {'; '.join(self.faults)}"
        return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"

    def convert(self, index: int, column: str, convert: Callable[[Any], T | None], problem: str, *, instead: T) -> T:
        value = self._row[index]
        try:
            converted = convert(value)
        except Exception:  # drivers and decoders raise what they like for a value that is none
            converted = None
        if converted is None:
            # PostgreSQL's drivers show no time that is out of range.
            shown = "" if value is None else f" {_show(value)}"
            self._blame(index, column, f"{column}{shown} {problem}")
            return instead
        return converted

    def text(self, index: int, column: str, limit: int) -> str:
        value = self._row[index]
        try:
            return check_text(value, what=column, limit=limit)
        except PublishError as error:
            self._blame(index, column, _to_fault(error))
            return clean_text(value)[:limit]

    def optional_text(self, index: int, column: str, limit: int) -> str | None:
        return None if self._row[index] is None else self.text(index, column, limit)

    def key(self, index: int, partition: object) -> str | None:
        """Return the key if its order can be kept: a key that is none, or of another lane, would mix up two orders."""
        faults = len(self.faults)
        key = self.optional_text(index, "key", MAX_TEXT)
        if len(self.faults) > faults:
            return None
        if not (type(partition) is int and 0 <= partition < PARTITIONS):
            self._blame(3, "partition", f"partition {_show(partition)} is not among 0 to {PARTITIONS - 1}")
            return None
        if key is not None and (right := _find_partition(key)) != partition:
            self._blame(index, "key", f"partition {partition} is not that of the key, which is {right}")
            return None
        return key

    def payload(self, index: int) -> bytes:
        value = self._row[index]
        if value is None:
            return b""
        if type(value) is not bytes:
            self._blame(index, "payload", f"payload is of type {type(value).__name__}, not bytes")
            return _to_bytes(value)
        return value

    def headers(self, index: int) -> Mapping[str, str]:
        value = self._row[index]
        if value is None:
            return {}
        try:
            headers: dict[str, str] = msgspec.json.decode(value, type=dict[str, str])
            _check_headers(headers)
        except PublishError as error:
            self._blame(index, "headers", _to_fault(error))
        except Exception as error:  # values are not shown: one may be a secret
            self._blame(index, "headers", f"headers are no JSON object of texts ({clean_text(error)})")
        else:
            return headers
        return {}

    def member(self, index: int, column: str, members: type[T], instead: Any) -> Any:
        if self._row[index] is None and instead is None:
            return None
        return self.convert(index, column, members, "is not known", instead=instead)

    def attempts(self, index: int) -> int:
        value = self._row[index]
        if type(value) is int and 0 <= value <= MAX_ATTEMPTS:
            return value
        self._blame(index, "attempts", f"attempts {_show(value)} is no count of attempts")
        return 0

    def time(self, index: int, column: str) -> datetime:
        return self.convert(index, column, self._to_time, "is out of range", instead=NO_TIME)

    def optional_time(self, index: int, column: str) -> datetime | None:
        if self._row[index] is None:
            return None
        return self.convert(index, column, self._to_time, "is out of range", instead=None)


def _show(value: object) -> str:
    shown = clean_text(repr(clean_text(value)) if isinstance(value, (str, bytes)) else value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"


def _to_fault(error: PublishError) -> str:
    """Return what is wrong as a part of a sentence."""
    return clean_text(error).removeprefix("The ").partition("; ")[0].rstrip(".")
