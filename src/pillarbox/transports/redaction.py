"""Text from elsewhere, made fit for the journal: one line or a bounded trace, no control characters, no secrets."""

from __future__ import annotations

import re
import traceback
from typing import Final

__all__ = ["one_line", "redacted", "trace_of"]

_LINE: Final = 300
_TRACE: Final = 8_000
_UNSEEN: Final = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL: Final = re.compile(f"[\x00-\x1f{_UNSEEN}]")
_CONTROL_BUT_LINES: Final = re.compile(f"[\x00-\x09\x0b-\x1f{_UNSEEN}]")

# Every repetition is bounded: the text may have been written by somebody who wants this to take long.
_LOGIN: Final = re.compile(r"(://[^\s/@:]{0,200}):[^\s@]{0,500}@")
_NAMED: Final = re.compile(
    r"""(?P<name>(?<![\w-])[\w-]{0,64}(?:passw(?:or)?d|pwd|secret|token|api[-_]?key|credential|authorization)"""
    r"""[\w-]{0,64}["']?\s{0,4}[=:]\s{0,4})"""
    r"""(?P<value>"[^"]{0,2000}"?|'[^']{0,2000}'?|(?:(?:bearer|basic)\s{1,4})?[^\s,;&'")\]}]{1,2000})""",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,2000}", re.IGNORECASE)
_WEBHOOK: Final = re.compile(r"whs(?:ec|k)_[\w+/=-]{1,500}")


def redacted(text: str) -> str:
    """The text without what looks like a password, a token or a key."""
    text = _LOGIN.sub(r"\1:***@", text)
    text = _NAMED.sub(r"\g<name>***", text)
    return _WEBHOOK.sub("***", _BEARER.sub(r"\1 ***", text))


def one_line(text: str, *, limit: int = _LINE) -> str:
    """The text on one line, redacted, without control characters, and not longer than the limit."""
    if len(text) > 8 * limit:
        # Up to a space: half a secret may no longer look like one.
        text = text[: 8 * limit].rpartition(" ")[0] or text[:limit]
    line = redacted(" ".join(_CONTROL.sub(" ", text).split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def trace_of(error: BaseException) -> str:
    """The traceback of an error, redacted. Of a long one the end is kept: that is where it happened."""
    text = "".join(traceback.format_exception(error))[-8 * _TRACE :]
    text = redacted(_CONTROL_BUT_LINES.sub(" ", text))
    return text if len(text) <= _TRACE else f"…{text[1 - _TRACE :]}"
