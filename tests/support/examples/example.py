"""Runs an example by the command that its README gives, as a person does in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from tests.support.cli.program import environment

__all__ = ["MAKE", "ROOT", "Example", "asked", "environ", "running"]

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[3]
_PATIENCE: Final = 100.0
MAKE: Final = ("make", "--no-print-directory", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.ready")
"""The make that people run, with the virtualenv of these tests, as it is."""
_OF_MAKE: Final = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
"""The tests themselves may run under make, and what it tells its children is not meant for this one."""


class Example:
    """The example while it runs, and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, look: Callable[[], T], what: str) -> T:
        """The first answer that is true in itself. An example that has ended gives none."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            has_ended = self.process.poll() is not None  # asked before looking: what it said last counts
            if found := look():
                return found
            assert not has_ended, f"it ended before: {what}\n{self.printed}"
            assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}\n{self.printed}"
            time.sleep(0.05)

    def until_it_prints(self, pattern: str, *, count: int = 1) -> list[Any]:
        """What the pattern matched, once it did so often."""

        def found() -> list[Any]:
            matches = re.findall(pattern, self.printed, flags=re.MULTILINE)
            return matches if len(matches) >= count else []

        return self.until(found, f"it prints {pattern!r} {count} times")

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(_PATIENCE)

    def kill(self, program: str) -> None:
        """SIGKILL to the process of that name that was started last."""
        *_, pid = self.until_it_prints(rf"^{program} is process (\d+)$")
        os.kill(int(pid), signal.SIGKILL)

    def interrupt(self) -> None:
        """Ctrl-C: every process of the terminal gets it, and ends without a word of complaint."""
        os.killpg(self.process.pid, signal.SIGINT)
        self._expect_the_end()

    def terminate(self) -> None:
        """SIGTERM to make alone, which passes it on; and so does the example."""
        self.process.terminate()
        self._expect_the_end()

    def _expect_the_end(self) -> None:
        self.process.wait(_PATIENCE)
        assert "Traceback" not in self.printed, self.printed
        started = re.findall(r"^\w+ is process (\d+)$", self.printed, flags=re.MULTILINE)
        assert not [pid for pid in started if _lives(int(pid))], self.printed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(name: str, folder: Path, **variables: str) -> Iterator[Example]:
    """`make example NAME=…`; killed in the end with all it started, if it still runs."""
    command = f"make example NAME={name}"
    assert command in (ROOT / "examples" / name / "README.md").read_text(), "the README gives another command"
    log = folder / "printed"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*MAKE, *command.split()[1:]], cwd=ROOT, env=environ(variables),
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield Example(process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environ(variables: Mapping[str, str]) -> dict[str, str]:
    """What a terminal would have, and these."""
    return {name: value for name, value in environment(variables).items() if name not in _OF_MAKE}


def asked(url: str) -> Any:
    """The JSON that is there; None while nobody answers."""
    try:
        return httpx.get(url, timeout=_PATIENCE).raise_for_status().json()
    except httpx.TransportError:
        return None
