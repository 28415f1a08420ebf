"""What a message may carry: how long a text can be, and which characters and header names are allowed.

The limits are those that every store and broker can keep. Errors name the field, never its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.errors import PublishError

__all__ = [
    "MAX_HEADERS",
    "MAX_NAME",
    "MAX_PAYLOAD",
    "MAX_TEXT",
    "RESERVED_HEADERS",
    "RESERVED_PREFIXES",
    "check_headers",
    "check_text",
    "is_type_name",
    "text_of",
]

MAX_PAYLOAD: Final = 1024 * 1024
"""Bytes of an encoded payload, unless the outbox says otherwise."""
MAX_NAME: Final = 255
"""Bytes of a type, a topic or a content type."""
MAX_TEXT: Final = 1024
"""Bytes of a key, subject, source, message id, correlation id or causation id: what an index entry can hold."""
MAX_HEADERS: Final = 8 * 1024
"""Bytes of all header names and values of one message: what HTTP servers take."""

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
    """A letter, then letters, digits and `_ . : / -`."""
    return isinstance(name, str) and _TYPE_NAME.fullmatch(name) is not None


def check_text(text: object, *, what: str, limit: int) -> str:
    """A text without control characters, of 1 to `limit` bytes; `PublishError` otherwise."""
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


def text_of(value: object, *, what: str) -> str | None:
    """A str, int, UUID, or an Enum of them, as text; None stays None. Anything else is a `PublishError`.

    Nothing else is let through to `str()`: an object whose text changes from one process to the next would
    break order in silence.
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
    """A copy of the headers; `PublishError` for a name or value that some broker would not carry unchanged."""
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
