"""Screens that are kept as text in the docs, and compared with what the program shows today."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

__all__ = ["PAGE", "REWRITE", "SCREENS", "mask", "matches_screen", "read_screen", "save_screen"]

_DOCS: Final = Path(__file__).parents[3] / "docs"
SCREENS: Final = _DOCS / "screens"
PAGE: Final = _DOCS / "operating.md"
REWRITE: Final = bool(os.environ.get("PILLARBOX_REWRITE_SCREENS"))
"""True to rewrite the screens instead of comparing them."""

_MASKS: Final = (
    (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<uuid>"),
    (r"[0-9a-f]{8}-[0-9a-f-]*…", "<uuid>"),
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


def mask(screen: str) -> str:
    """Replace what differs from run to run."""
    for pattern, mask in _MASKS:
        screen = re.sub(pattern, mask, screen, flags=re.MULTILINE)
    return screen.strip()


def read_screen(name: str) -> str:
    """Read the screen that is in the docs."""
    return (SCREENS / f"{name}.txt").read_text("utf-8")


def matches_screen(name: str, screen: str) -> bool:
    """Return whether this is the screen of that name; always True where screens are rewritten."""
    return REWRITE or mask(screen) == mask(read_screen(name))


def save_screen(name: str, screen: str) -> None:
    """Write the screen to both places, if screens are rewritten."""
    if REWRITE:
        for pattern, told in _TIDY:
            screen = re.sub(pattern, told, screen)
        text = "\n".join(line.rstrip() for line in screen.strip().splitlines()) + "\n"
        SCREENS.mkdir(exist_ok=True)
        (SCREENS / f"{name}.txt").write_text(text, "utf-8")
        block = re.compile(rf"(<!-- {name} -->\n```console\n).*?(```\n)", re.DOTALL)
        page = PAGE.read_text("utf-8")
        PAGE.write_text(block.sub(lambda found: found[1] + text + found[2], page), "utf-8")
