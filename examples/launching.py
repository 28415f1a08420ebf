"""Runs the processes of an example side by side until Ctrl-C, and starts again what was killed.

The stage, not the play: in production systemd, Kubernetes or the like does this.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

__all__ = ["Program", "post", "run_together", "say"]

_PATIENCE: Final = 60.0
_GRACE: Final = 40.0
"""Longer than a relay lets a send go on when it stops."""


class Program:
    """One process of the example. The arguments are what stands behind `python`."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, *self._arguments])
        say(f"{self.name} is process {self._process.pid}")

    def look_after(self) -> None:
        """Start it again if somebody ended it. One that could not go on ends the example."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return
        if code > 0:
            raise SystemExit(f"{self.name} ended with {code}, and the example with it; it says above why.")
        say(f"{self.name} was ended, and starts again")
        self.start()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Until it has ended, and no longer than that may take."""
        if self._process is not None:
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()


def run_together(*programs: Program, first: Callable[[], None]) -> None:
    """Run them all, and `first` beside them, until Ctrl-C."""
    with _stopping(programs):
        for program in programs:
            program.start()
        threading.Thread(target=first, daemon=True).start()
        while True:
            for program in programs:
                program.look_after()
            time.sleep(0.1)


@contextmanager
def _stopping(programs: Sequence[Program]) -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal by itself; whatever else ends us is passed on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    except KeyboardInterrupt:
        say("stopping")
    except BaseException:
        for program in programs:
            program.terminate()
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for program in programs:
            program.wait()


def post(url: str) -> None:
    """Send an empty POST, once somebody answers there."""
    request, deadline = urllib.request.Request(url, method="POST"), time.monotonic() + _PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE):
                return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def say(text: str) -> None:
    """Print in one piece, so that lines of several processes do not mix."""
    print(text, flush=True)
