"""A Mosquitto broker of our own: any settings, free to be stopped and killed, gone afterwards."""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.private_program import free_port
from tests.support.servers import ServerMissing

__all__ = ["PrivateMosquitto", "mosquitto_program"]

_PATIENCE: Final = 30.0
_FOLDERS: Final = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:/usr/bin:/usr/local/bin"


def mosquitto_program(name: str = "mosquitto") -> str | None:
    """Where the program is, if it is installed; distributions keep it off a user's path."""
    return shutil.which(name) or shutil.which(name, path=_FOLDERS)


@dataclass(slots=True)
class PrivateMosquitto:
    """A broker on a free loopback port, with its files in a temporary folder. Its methods block until done."""

    folder: Path
    port: int
    settings: Sequence[str] = ()
    """Lines of its configuration. `{folder}` in them is its folder."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def started(cls, *settings: str, files: dict[str, str] | None = None) -> PrivateMosquitto:
        """A new one that answers, or `ServerMissing`. `files` are written into its folder first."""
        if mosquitto_program() is None:
            raise ServerMissing("none answers at the usual port, and the program is not installed")
        broker = cls(Path(tempfile.mkdtemp(prefix="pillarbox-mosquitto-")), free_port(), settings)
        try:
            for name, text in (files or {}).items():
                broker.write(name, text)
            broker.start()
        except BaseException:
            broker.close()
            raise
        return broker

    @property
    def url(self) -> str:
        """Where it answers. The same after each restart."""
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the broker wrote so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def write(self, name: str, text: str) -> None:
        """A file beside its configuration. Mosquitto warns about those that others can read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)

    def start(self) -> None:
        """Run it, and return once it answers."""
        lines = [f"listener {self.port} 127.0.0.1", f"user {getpass.getuser()}", *self.settings]
        if not any(line.startswith(("allow_anonymous", "password_file")) for line in lines):
            lines.append("allow_anonymous true")
        self.write("conf", "\n".join(lines).replace("{folder}", str(self.folder)) + "\n")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(mosquitto_program()), "-v", "-c", str(self.folder / "conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which then ends the broker
            )
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerMissing(f"a private one did not start, and wrote: {self.log[-500:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut it down in order: it saves what it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as the kernel does when memory runs out."""
        self._end(signal.SIGKILL)

    def reload(self) -> None:
        """Let it read its access list and passwords again, and return when it has."""
        assert self._process is not None
        before = self.log.count("Reloading config")
        self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + _PATIENCE
        while self.log.count("Reloading config") == before and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
