"""A PostgreSQL server of our own: started from what is installed, free to be stopped and killed, gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psycopg

from tests.support.postgres_programs import Account, account, environment, program_folders, reachable
from tests.support.private_program import free_port
from tests.support.servers import ServerMissing

__all__ = ["PrivatePostgres", "StopMode"]

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: Final[dict[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_SETTINGS: Final = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",  # a temporary folder's path can be too long for a socket
    "fsync=off",  # a killed server loses nothing by it, only a killed machine does
)
_PATIENCE: Final = 30.0


@dataclass(slots=True)
class PrivatePostgres:
    """A server on a free loopback port, with its data in a temporary folder. Its methods block until done."""

    programs: Path
    folder: Path
    port: int
    account: Account
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def started(cls, programs: Path | None = None) -> PrivatePostgres:
        """A new one that answers, or `ServerMissing`."""
        programs = programs or next(iter(program_folders()), None)
        if programs is None:
            raise ServerMissing("none answers at the usual port, and its programs are not installed")
        runs_as = account()
        folder = Path(tempfile.mkdtemp(prefix="pillarbox-postgres-"))
        server = cls(programs, folder, free_port(), runs_as)
        try:
            server._make_data()
            server.start()
        except BaseException:
            server._remove()
            raise
        return server

    @property
    def url(self) -> str:
        """Its maintenance database, as superuser. The same after each restart."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Run it, and return once it answers. Fine when it runs already."""
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self.pid is None:  # also again: what a killed server left behind may need a moment to go
                self._launch()
            if time.monotonic() > deadline:
                raise ServerMissing(f"a private one did not start, and wrote: {self.log[-500:]}")
            time.sleep(0.05)

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut it down in order, as `pg_ctl stop` does; `smart` waits for the clients to leave."""
        self._end(_SIGNALS[mode])

    def kill(self) -> None:
        """End it as the kernel does when memory runs out: nothing more is written, nobody is told."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop it and remove its folder. A killed one runs once more, to free the shared memory it left."""
        try:
            if self.pid is None and (self.data / "postmaster.pid").exists():
                self.start()
            self.stop()
        finally:
            self._remove()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self.pid is not None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)

    def _remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        if self.pid is None:
            return False
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_data(self) -> None:
        self.programs = reachable(self.programs, account=self.account, copies=self.folder)
        if self.account.uid is not None and self.account.gid is not None:
            os.chown(self.folder, self.account.uid, self.account.gid)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        initdb = self._spawn(self.programs / "initdb", f"--pgdata={self.data}", *options)
        if initdb.wait(_PATIENCE) != 0:
            raise ServerMissing(f"initdb failed, and wrote: {self.log[-500:]}")

    def _launch(self) -> None:
        settings = [f"--{setting}" for setting in (*_SETTINGS, f"port={self.port}")]
        self._process = self._spawn(self.programs / "postgres", "-D", str(self.data), *settings)

    def _spawn(self, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [program, *arguments],
                user=self.account.uid,
                group=self.account.gid,
                extra_groups=self.account.groups,
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which then ends the server
            )
