"""The processes of the demo: started, killed and stopped by the runner, and only these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pillarbox.errors import PillarboxError

__all__ = ["Process", "build_environment"]


def build_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Our own without what would configure Pillarbox, and with these settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")} | dict(settings)


class Process:
    """One process. It can be killed and started again; its output goes to a file named after it."""

    def __init__(
        self, name: str, *, module: str, arguments: Sequence[str], folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "pillarbox.demo.leash", module, *arguments]
        self._folder = folder
        self._environment = build_environment(settings)
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name.replace(' ', '-')}.log"

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._running.pid if self._running is not None else None

    def start(self) -> None:
        """Start it in a session of its own: a Ctrl-C is for the runner, which stops the others."""
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
        """SIGKILL, and wait until it is gone."""
        if self._running is not None:
            self._running.kill()
            self._end()

    def stop(self, *, within: float) -> None:
        """Ask it to finish with SIGTERM; SIGKILL if it takes too long."""
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)
            try:
                self._running.wait(timeout=within)
            except subprocess.TimeoutExpired:
                self._running.kill()
            self._end()

    def has_finished(self) -> bool:
        """Whether it came to its end by itself, and well. `PillarboxError` when it ended otherwise."""
        code = self._running.poll() if self._running is not None else None
        if code:
            raise PillarboxError(
                f"The {self.name} ended with code {code}, and was not asked to: {self._read_last_line()}"
            )
        return code == 0

    def _end(self) -> None:
        if self._running is not None:
            self._running.wait()
            if self._running.stdin is not None:
                self._running.stdin.close()
            self._running = None

    def _read_last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing."
