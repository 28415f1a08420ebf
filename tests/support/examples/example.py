"""Runs an example with the command of its README."""

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

__all__ = ["MAKE", "ROOT", "Example", "build_environment", "fetch_json", "run_example"]

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[3]
_TIMEOUT: Final = 100.0
MAKE: Final = ("make", "--no-print-directory", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.ready")
"""make, with the virtualenv of these tests."""
_OF_MAKE: Final = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
"""Variables that a make around the tests sets for its children: this one must not see them."""


class Example:
    """A running example, and its output."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until(self, look: Callable[[], T], what: str) -> T:
        """Poll until `look` returns something true, and return it; fail if the example ends before."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            has_ended = self.process.poll() is not None  # checked before looking: its last output counts
            if found := look():
                return found
            assert not has_ended, f"it ended before: {what}\n{self.output}"
            assert time.monotonic() < deadline, f"not within {_TIMEOUT:g} s: {what}\n{self.output}"
            time.sleep(0.05)

    def wait_for_output(self, pattern: str, *, count: int = 1) -> list[Any]:
        """Wait until the output matches so often, and return the matches."""

        def found() -> list[Any]:
            matches = re.findall(pattern, self.output, flags=re.MULTILINE)
            return matches if len(matches) >= count else []

        return self.wait_until(found, f"it prints {pattern!r} {count} times")

    def wait_for_exit(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        return self.process.wait(_TIMEOUT)

    def kill(self, program: str) -> None:
        """Send SIGKILL to the latest process of that name."""
        *_, pid = self.wait_for_output(rf"^{program} is process (\d+)$")
        os.kill(int(pid), signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT to all processes, as Ctrl-C does, and check that they end without a traceback."""
        os.killpg(self.process.pid, signal.SIGINT)
        self._check_end()

    def terminate(self) -> None:
        """Send SIGTERM to make alone, which passes it on, and check that all processes end."""
        self.process.terminate()
        self._check_end()

    def _check_end(self) -> None:
        self.process.wait(_TIMEOUT)
        assert "Traceback" not in self.output, self.output
        started = re.findall(r"^\w+ is process (\d+)$", self.output, flags=re.MULTILINE)
        assert not [pid for pid in started if _is_alive(int(pid))], self.output


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def run_example(name: str, folder: Path, **variables: str) -> Iterator[Example]:
    """Run `make example NAME=…`, and kill it with all its processes after the block."""
    command = f"make example NAME={name}"
    assert command in (ROOT / "examples" / name / "README.md").read_text(), "the README gives another command"
    log = folder / "printed"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*MAKE, *command.split()[1:]], cwd=ROOT, env=build_environment(variables),
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield Example(process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def build_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a terminal, with these variables."""
    return {name: value for name, value in environment(variables).items() if name not in _OF_MAKE}


def fetch_json(url: str) -> Any:
    """Return the JSON at this URL; None while no server answers."""
    try:
        return httpx.get(url, timeout=_TIMEOUT).raise_for_status().json()
    except httpx.TransportError:
        return None
