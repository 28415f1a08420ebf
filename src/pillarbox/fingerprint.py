"""Fingerprint of an error: the text that messages have in common which failed for one reason. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_FINGERPRINT", "fingerprint"]

MAX_FINGERPRINT: Final = 200
"""Characters of the longest fingerprint: so long is its column."""
_LOOKED_AT: Final = 2_000
"""Characters of an error that are looked at. Whoever wrote it may have meant to make this take long."""

# Every repetition is bounded, or cannot be tried in two ways. What stands first wins: a date is no number.
_VARYING: Final = re.compile(
    r"""
    (?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^\s/?\#'"`<>]{1,300}
    | (?P<quoted>(?<!\w)(?P<quote>['"`])(?:(?!(?P=quote)).){1,500}(?P=quote)(?!\w))
    | (?P<id>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b0[xX][0-9a-fA-F]{1,100}\b)
    | (?P<time>
        \b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ])?\d{1,2}[ ](?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]\d{4}
          (?:[ ]\d{2}:\d{2}(?::\d{2})?)?(?:[ ](?:GMT|UTC|[+-]\d{4}))?
        | \b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:[ ]?(?:Z\b|UTC\b|[+-]\d{2}:?\d{2}))?)?
        | \b\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?)
    | (?P<host>
        \b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5}\b)?
        | \[[0-9a-fA-F:.%]{2,60}\](?::\d{1,5}\b)?
        | (?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:])
        | (?<![\w.-])[a-zA-Z][\w.-]{0,252}:\d{2,5}\b)
    | (?P<token>\b(?=[a-zA-Z_-]{0,99}\d)[\w-]{20,500}\b|\b(?=[a-fA-F]{0,99}\d)(?=\d{0,99}[a-fA-F])[0-9a-fA-F]{8,100}\b)
    | (?P<status>(?<![\w.,-])[1-5]\d\d
        (?![\w.,-]?\d|[\w-]|[ ]?%|[ ]?(?:[mun]?s|seconds?|minutes?|hours?|days?|bytes?|[kKMG]i?B)\b))
    | (?P<number>\d{1,500}(?:[.,]\d{1,500}){0,10})
    """,
    re.VERBOSE,
)
_PLACEHOLDERS: Final = {"id": "<id>", "token": "<id>", "time": "<time>", "host": "<host>", "number": "#"}


def fingerprint(error: str) -> str:
    """Return the error without what differs from message to message, in at most 200 characters.

    Ids, hexadecimal numbers, addresses of hosts, times, quoted values and numbers are replaced by a word each. A number
    from 100 to 599 that stands alone stays: it is the status of an answer, and says why the message failed.
    """
    text = " ".join(_to_printable(error[:_LOOKED_AT]).split())
    text = _VARYING.sub(_replace, text)
    return text if len(text) <= MAX_FINGERPRINT else f"{text[: MAX_FINGERPRINT - 1]}…"


def _replace(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if found["scheme"] is not None:
        return f"{found['scheme']}<host>"
    if found["quoted"] is not None:
        return f"{found['quote']}…{found['quote']}"
    return found[0] if kind is None or kind == "status" else _PLACEHOLDERS[kind]


def _to_printable(text: str) -> str:
    """Replace what no line of text and no database takes: control characters, NUL, halves of characters."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
