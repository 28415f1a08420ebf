"""Relay processes, started and ended by the test and by nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tests.support.relay_processes.child import Part

__all__ = ["Fleet", "RelayProcess", "until"]

_ROOT: Final = Path(__file__).parents[3]


def until(holds: Callable[[], object], *, within: float, what: str) -> None:
    """Look until it holds; fail after so many seconds."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.02)


class RelayProcess:
    """One relay. Its log goes to a file."""

    def __init__(self, part: Part, *, log: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
        command = [sys.executable, "-m", "tests.support.relay_processes.child", msgspec.json.encode(part).decode()]
        self.log = log
        with log.open("ab") as lines:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=lines, stderr=lines, cwd=_ROOT, env=environ,
                start_new_session=True,
            )  # fmt: skip
        self.pid: Final = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. It may be gone already."""
        self._process.kill()
        self.ended(within=40)

    def ended(self, *, within: float) -> int:
        """Wait for its end. Answers its exit code."""
        code = self._process.wait(timeout=within)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code


class Fleet:
    """All relay processes of one test."""

    def __init__(self, part: Part, *, logs: Path) -> None:
        self.part = part
        self._logs = logs
        self._started: list[RelayProcess] = []

    def start(self) -> RelayProcess:
        relay = RelayProcess(self.part, log=self._logs / f"relay-{len(self._started)}.log")
        self._started.append(relay)
        return relay

    def close(self) -> None:
        for relay in self._started:
            relay.kill()

    def told(self) -> str:
        """What the relays logged, for whoever reads a failed test."""
        return "".join(f"--- {relay.log.name}\n{relay.log.read_text(errors='replace')}" for relay in self._started)
