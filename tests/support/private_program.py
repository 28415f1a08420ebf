"""A server program of our own: on a free loopback port, free to be stopped and killed, gone afterwards."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Self

from tests.support.servers import ServerMissing

__all__ = ["PrivateProgram", "free_port"]

_PATIENCE: Final = 30.0
_FOLDERS: Final = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:/usr/bin:/usr/local/bin"


class PrivateProgram:
    """Runs one program with its files in a temporary folder. Its methods block until done."""

    names: Sequence[str] = ()
    """The program's file, in folders of the PATH and beside Python; absolute paths are taken as they are."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.folder = Path(tempfile.mkdtemp(prefix=f"pillarbox-{program.name}-"))
        self.port = free_port()
        """The same after each restart."""
        self._process: subprocess.Popen[bytes] | None = None
        self._logged_before = 0

    @classmethod
    def found(cls) -> Path:
        """Where the program is, or `ServerMissing`."""
        for name in cls.names:
            path = shutil.which(name) or shutil.which(name, path=_FOLDERS)
            if path is not None:
                return Path(path)
        raise ServerMissing("none answers at the usual port, and the program is not installed")

    def arguments(self) -> Sequence[str]:
        """What the program is started with."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it is ready for work. Until then it is asked again."""
        return self.is_listening

    @property
    def is_listening(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def pid(self) -> int | None:
        """Its process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log(self) -> str:
        """What it wrote so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log_of_run(self) -> str:
        """What it wrote since it was started last."""
        return self.log[self._logged_before :]

    def started(self) -> Self:
        """Itself, running; or `ServerMissing` and nothing left of it."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self) -> None:
        """Run it, and return once it answers."""
        self.launch()
        deadline = time.monotonic() + _PATIENCE
        while not self.answers():
            if self.pid is None or time.monotonic() > deadline:
                raise ServerMissing(f"a private one did not start, and wrote: {self.log[-500:]}")
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        """Return what the program finds in its environment.

        Its temporary files have a folder of their own: MariaDB and MySQL remove those of every server when they start.
        """
        return {**os.environ, "TMPDIR": str(self.folder)}

    def launch(self) -> None:
        """Run it, and return at once."""
        self._logged_before = len(self.log)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, *self.arguments()],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which then ends the server
            )

    def stop(self) -> None:
        """Shut it down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as the kernel does when memory runs out."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it and remove its folder."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)


_FIRST_PORT: Final = 20_000
_RANGE: Final = 100
_RANGES: Final = 100


class _Ports:
    """Ports that no other test process on this machine chooses: each process locks a range, and goes round in it."""

    def __init__(self) -> None:
        # Not the shared dice, which a test may have seeded. The lock ends with the process.
        numbers = random.SystemRandom().sample(range(_RANGES), _RANGES)
        self._number = next(number for number in numbers if _lock_range(number))
        self._next = 0

    def choose(self) -> int:
        self._next = (self._next + 1) % _RANGE
        return _FIRST_PORT + self._number * _RANGE + self._next


def _lock_range(number: int) -> bool:
    path = Path(tempfile.gettempdir()) / f"pillarbox-test-ports-{os.getuid()}-{number}"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


@cache
def _ports(process: int) -> _Ports:
    return _Ports()


def free_port() -> int:
    """A port below those that the kernel hands out: nobody takes it while the server is down for a test."""
    while True:
        port = _ports(os.getpid()).choose()
        with socket.socket() as candidate:
            if candidate.connect_ex(("127.0.0.1", port)) != 0:
                return port
