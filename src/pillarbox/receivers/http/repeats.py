"""Whether a message may have been in a consumer's hands before. A request does not say so itself."""

from __future__ import annotations

from typing import Final

__all__ = ["Remembered"]

_MOST: Final = 10_000


class Remembered:
    """Messages that were handed out and not acknowledged, the latest ones."""

    def __init__(self, *, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[str, None] = {}

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, message_id: str) -> None:
        """It is handed out."""
        self._known.pop(message_id, None)
        self._known[message_id] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def forget(self, message_id: str) -> None:
        """It is acknowledged."""
        self._known.pop(message_id, None)
