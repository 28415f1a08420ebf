"""How a channel or a connection ends."""

from __future__ import annotations

__all__ = ["Broken", "Closed", "Ended"]


class Ended(Exception):
    """It is no more. The text says why."""


class Closed(Ended):
    """The broker closed it, and said why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Broken(Ended):
    """It is gone, and the broker said nothing."""
