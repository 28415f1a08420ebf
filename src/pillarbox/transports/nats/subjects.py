"""Which texts NATS takes as a subject. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["LONGEST", "is_pattern", "is_subject"]

LONGEST: Final = 3_500
"""Bytes. A server closes the connection over a command line of more than 4,096, and the reply subject is on it too."""
_SUBJECT: Final = re.compile(r"(?:(?![*>](?:\.|$))[^\s.\x00-\x1f\x7f]+)(?:\.(?![*>](?:\.|$))[^\s.\x00-\x1f\x7f]+)*")
_PATTERN: Final = re.compile(r"[^\s.\x00-\x1f\x7f]+(?:\.[^\s.\x00-\x1f\x7f]+)*")


@lru_cache(maxsize=8_192)
def is_subject(text: str) -> bool:
    """Whether a message can be published to it: words between dots, without spaces and wildcards."""
    return _SUBJECT.fullmatch(text) is not None and len(text.encode()) <= LONGEST


def is_pattern(text: str) -> bool:
    """Whether it can be listened to: as a subject, and with wildcards."""
    return _PATTERN.fullmatch(text) is not None
