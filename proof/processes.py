"""The processes of the crash matrix and the chain: a fork server starts them, and ends only what it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, Self

import msgspec

from proof.kill_points import Kill

__all__ = ["ForkServer", "Program", "ProgramSpec", "ServerProcess", "TimedOut", "serve_forks", "wait_until"]

_POLL_SECONDS: Final = 0.005
_ROOT: Final = Path(__file__).parents[1]
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 15.0

RunProgram = Callable[[bytes], None]
"""Runs the program of an encoded `ProgramSpec`, in a child process."""


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a program runs on, and where it dies. Each program adds its own options."""

    backend: str
    """`postgres`, `sqlite` or `mariadb`."""
    store: str
    schema: str | None
    kill: Kill | None = None


class TimedOut(Exception):
    """Something did not happen in time. The text says what."""


def wait_until(holds: Callable[[], object], *, within: float, what: str) -> None:
    """Poll until it holds; `TimedOut` after so many seconds."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TimedOut(f"not within {within:g} s: {what}")
        time.sleep(0.01)


# --- in the fork server ---


class ForkRequest(msgspec.Struct, frozen=True):
    """Asks for a process that runs the program of `spec`."""

    number: int
    """Process ids are reused; this number is not."""
    spec: msgspec.Raw
    log: str


class ForkReply(msgspec.Struct, frozen=True):
    """Says that a process has started, or with which code it ended."""

    number: int
    pid: int
    exit_code: int | None = None


def serve_forks(run_program: RunProgram) -> None:
    """Start a process for each request, until standard input ends."""
    _ForkServer(run_program).run()


class _ForkServer:
    def __init__(self, run_program: RunProgram) -> None:
        self._run_program = run_program
        self._children: dict[int, int] = {}
        """Process id to the number of its request."""

    def run(self) -> None:
        # Whoever asks waits for the answer, so there are never two lines to read.
        while True:
            if select.select([0], [], [], _POLL_SECONDS)[0]:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                self._start(msgspec.json.decode(line, type=ForkRequest))
            self._reap()

    def _start(self, request: ForkRequest) -> None:
        pid = os.fork()
        if pid == 0:
            self._run_child(request)
        self._children[pid] = request.number
        _reply(ForkReply(request.number, pid))

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _reply(ForkReply(self._children.pop(pid), pid, os.waitstatus_to_exitcode(status)))

    def _run_child(self, request: ForkRequest) -> NoReturn:
        """Run the program and exit: a child never returns into the server's loop."""
        code = 1
        try:
            log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            threading.Thread(target=_exit_with_client, daemon=True).start()
            self._run_program(bytes(request.spec))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _reply(reply: ForkReply) -> None:
    os.write(1, msgspec.json.encode(reply) + b"\n")


def _exit_with_client() -> None:
    """Exit when the other end of standard input is closed. Read nothing: the requests are not for the child."""
    other_end = select.poll()
    other_end.register(0, 0)
    other_end.poll()
    os._exit(1)


# --- in the process that runs the proof ---


class ServerProcess:
    """A module of ours as a process. It ends when its standard input does, so it does not outlive us."""

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
        self._log = log
        self._unread = b""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, cwd=_ROOT, env=environ, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read_lines(self, *, within: float = 0.0) -> list[bytes]:
        """Return the lines that it has printed since the last call; wait so many seconds for the first."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if select.select([output], [], [], within)[0]:
            piece = os.read(output, 65_536)
            if not piece:
                raise TimedOut(f"a server process has ended: {self._log.read_text()[-500:]}")
            self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def write_line(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def read_port(self) -> int:
        """Return the port that it prints when it listens."""
        (port,) = self.read_lines(within=_START_SECONDS) or [b"0"]
        return int(port)


class ForkServer(ServerProcess):
    """Starts programs without waiting for an interpreter. `module` calls `serve_forks` with its programs."""

    def __init__(self, folder: Path, *, module: str) -> None:
        super().__init__(module, log=folder / "fork-server.log")
        self._started: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._requests = 0

    def start(self, spec: ProgramSpec, *, log: Path) -> Program:
        """Start a process that runs this program."""
        self._requests += 1
        number = self._requests
        self.write_line(msgspec.json.encode(ForkRequest(number, msgspec.Raw(msgspec.json.encode(spec)), str(log))))
        deadline = time.monotonic() + _START_SECONDS
        while number not in self._started:
            if time.monotonic() > deadline:
                raise TimedOut(f"not within {_START_SECONDS:g} s: a process starts")
            self._read_replies(within=1.0)
        return Program(number, self._started[number], self, log=log)

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of the process of that request; None while it runs."""
        self._read_replies()
        return self._ended.get(number)

    def _read_replies(self, *, within: float = 0.0) -> None:
        for line in self.read_lines(within=within):
            reply = msgspec.json.decode(line, type=ForkReply)
            if reply.exit_code is None:
                self._started[reply.number] = reply.pid
            else:
                self._ended[reply.number] = reply.exit_code


class Program:
    """One process. Its log goes to a file."""

    def __init__(self, number: int, pid: int, fork_server: ForkServer, *, log: Path) -> None:
        self._number = number
        self.pid: Final = pid
        self._fork_server = fork_server
        self.log = log

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a signal that killed it is a negative number."""
        return self._fork_server.exit_code(self._number)

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    @property
    def was_killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    def terminate(self) -> None:
        """Send SIGTERM: stop gracefully."""
        self._signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """Stop it gracefully and wait. Return the exit code; None if it did not end in time."""
        self.terminate()
        with suppress(TimedOut):
            wait_until(lambda: self.has_ended, within=_END_SECONDS, what="it stops")
        return self.exit_code

    def kill(self) -> None:
        """Send SIGKILL and wait. It may have ended already."""
        self._signal(signal.SIGKILL)
        wait_until(lambda: self.has_ended, within=_END_SECONDS, what="it ends")

    def read_log(self) -> str:
        """Return its log; it may not have one yet."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
