"""Runs the program on a terminal of its own, where somebody looks and may type."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Final

from tests.support.cli.program import PROGRAM, environment

__all__ = ["run_on_terminal", "split_pages"]

_PATIENCE: Final = 60.0
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_CLEARED: Final = "\x1b[2J\x1b[1;1H"
_LEFT: Final = "\x1b[?1049l"
"""The alternate screen is left."""


async def run_on_terminal(
    *arguments: str,
    cwd: Path,
    asked: str = "",
    typed: str = "",
    keep_colours: bool = False,
    columns: int = 160,
    rows: int = 50,
    **extra: str,
) -> tuple[int, str]:
    """Run the program; return its exit code and all output. `typed` is typed when the output has `asked`."""
    code, seen = await asyncio.to_thread(_run, arguments, cwd, asked, typed, extra, size=(rows, columns))
    return code, seen if keep_colours else _COLOURS.sub("", seen)


def split_pages(screen: str) -> list[str]:
    """Split the output of a live screen where it was cleared, without what stays when it ends."""
    return screen.partition(_LEFT)[0].split(_CLEARED)[1:]


def _run(
    arguments: tuple[str, ...], cwd: Path, asked: str, typed: str, extra: dict[str, str], *, size: tuple[int, int]
) -> tuple[int, str]:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    env = environment({"TERM": "xterm", "NO_COLOR": "1", **extra})
    for name in ("COLUMNS", "LINES"):  # the terminal itself says how large it is
        env.pop(name, None)
    with subprocess.Popen(
        [PROGRAM, *arguments], cwd=cwd, env=env, stdin=terminal, stdout=terminal, stderr=terminal
    ) as program:
        os.close(terminal)
        seen, decoder = "", codecs.getincrementaldecoder("utf-8")()
        with open(screen, "rb", buffering=0) as reading, contextlib.suppress(OSError):  # a terminal ends with an error
            while chunk := reading.read(65_536):
                seen += decoder.decode(chunk)
                if asked and asked in seen:
                    os.write(screen, typed.encode())
                    asked = ""
        return program.wait(_PATIENCE), seen.replace("\r\n", "\n")
