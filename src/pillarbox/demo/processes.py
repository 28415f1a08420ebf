"""The processes of the demo: started, killed and stopped by the runner.

As a program, `python -m pillarbox.demo.processes MODULE ARGUMENT…` runs a module that ends with the demo. The runner
holds the other end of its standard input. When the runner ends, however it ends, the pipe closes, so nothing that the
demo started outlives it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pillarbox.errors import PillarboxError

__all__ = ["Process", "build_environment"]


def build_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our own environment without what would configure Pillarbox, and with these settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")} | dict(settings)


class Process:
    """One process. It can be killed and started again; its output goes to a file named after it."""

    def __init__(
        self, name: str, *, module: str, arguments: Sequence[str], folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "pillarbox.demo.processes", module, *arguments]
        self._folder = folder
        self._environment = build_environment(settings)
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name.replace(' ', '-')}.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self._running.pid if self._running is not None else None

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only the runner, which stops the others."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        if self._running is not None:
            self._running.kill()
            self._end()

    def stop(self, *, within: float) -> None:
        """Send SIGTERM, and SIGKILL if it takes too long."""
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)
            try:
                self._running.wait(timeout=within)
            except subprocess.TimeoutExpired:
                self._running.kill()
            self._end()

    def has_finished(self) -> bool:
        """Return whether it has ended with code 0. Raise `PillarboxError` if it ended with another code."""
        code = self._running.poll() if self._running is not None else None
        if code:
            raise PillarboxError(f"The {self.name} ended unexpectedly with code {code}: {self._read_last_line()}")
        return code == 0

    def _end(self) -> None:
        if self._running is not None:
            self._running.wait()
            if self._running.stdin is not None:
                self._running.stdin.close()
            self._running = None

    def _read_last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty."


def _exit_with_runner() -> None:
    # Not through sys.stdin: a reader that waits there would hold a lock that the interpreter needs at exit.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_runner, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
