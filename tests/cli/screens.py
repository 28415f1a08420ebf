"""Screens that are kept as text in the docs, and compared with what the program shows today."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

__all__ = ["PAGE", "REWRITE", "SCREENS", "is_shown", "keep", "kept", "masked"]

_DOCS: Final = Path(__file__).parents[2] / "docs"
SCREENS: Final = _DOCS / "screens"
PAGE: Final = _DOCS / "operating.md"
REWRITE: Final = bool(os.environ.get("PILLARBOX_REWRITE_SCREENS"))
"""Whether the screens are written anew instead of compared."""

_MASKS: Final = (
    (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<uuid>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<time>"),
    (r"on [\w.-]+ \(\d+\)", "on <host> (<pid>)"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"\b[\d,]+(?:\.\d)?/s", "<rate>"),
    (r"\b\d+(?:\.\d+)?(?:ms|s|m|h|d)(?:\d+(?:s|m|h))?\b", "<span>"),
    (r"[▁▂▃▄▅▆▇█]+", "<line>"),
    (r"[─━]+", "─"),
    (r" +", " "),
    (r" $", ""),
)
"""What differs from run to run; and the room that it takes, for columns are as wide as what is in them."""
_TIDY: Final = (
    (rf"on {re.escape(socket.gethostname())} \(\d+\)", "on web-1 (4711)"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:8443"),
    (r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d UTC)", r"2026-01-31 \1"),
)
"""What would tell where and when the screens were taken."""


def masked(screen: str) -> str:
    """The screen without what may differ."""
    for pattern, mask in _MASKS:
        screen = re.sub(pattern, mask, screen, flags=re.MULTILINE)
    return screen.strip()


def kept(name: str) -> str:
    """The screen as it is in the docs."""
    return (SCREENS / f"{name}.txt").read_text("utf-8")


def is_shown(name: str, screen: str) -> bool:
    """Whether this is the screen of that name; where screens are written anew, every screen is."""
    return REWRITE or masked(screen) == masked(kept(name))


def keep(name: str, screen: str) -> None:
    """Write it down in both places, if that was asked for."""
    if REWRITE:
        for pattern, told in _TIDY:
            screen = re.sub(pattern, told, screen)
        text = "\n".join(line.rstrip() for line in screen.strip().splitlines()) + "\n"
        SCREENS.mkdir(exist_ok=True)
        (SCREENS / f"{name}.txt").write_text(text, "utf-8")
        block = re.compile(rf"(<!-- {name} -->\n```console\n).*?(```\n)", re.DOTALL)
        page = PAGE.read_text("utf-8")
        PAGE.write_text(block.sub(lambda found: found[1] + text + found[2], page), "utf-8")
