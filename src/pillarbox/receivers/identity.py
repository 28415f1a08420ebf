"""What a plain message is known by. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from pillarbox.limits import MAX_TEXT

__all__ = ["identity"]

_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def identity(text: str) -> str:
    """The text itself, or a digest of one that no inbox can keep: it is too long, or has control characters in it.

    Different texts stay different, and the same text is the same at every delivery.
    """
    if len(text) <= MAX_TEXT and not _UNUSABLE.search(text) and len(text.encode()) <= MAX_TEXT:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
