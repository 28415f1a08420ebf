"""The processes of the matrix: begun and ended by it and by nobody else."""

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

__all__ = ["Consumer", "ForkServer", "Program", "TooLate", "serve_forks", "until"]

_LOOK: Final = 0.005

CarryOut = Callable[[bytes], None]
"""Does what an order says. Runs in a child, until its end."""


class ForkRequest(msgspec.Struct, frozen=True):
    """Have this order carried out by a process of its own."""

    number: int
    """Process ids come again; this does not."""
    order: msgspec.Raw
    log: str


class ForkReply(msgspec.Struct, frozen=True):
    """Of a process: it has begun, or what it came to."""

    number: int
    pid: int
    exit_code: int | None = None


def serve_forks(carry_out: CarryOut) -> None:
    """Until standard input ends."""
    _ForkServer(carry_out).run()


class _ForkServer:
    def __init__(self, carry_out: CarryOut) -> None:
        self._carry_out = carry_out
        self._children: dict[int, int] = {}
        """Process id to the number of its birth."""

    def run(self) -> None:
        """Whoever orders waits for the answer, so that never two lines are there."""
        while True:
            if select.select([0], [], [], _LOOK)[0]:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                self._bear(msgspec.json.decode(line, type=ForkRequest))
            self._bury()

    def _bear(self, birth: ForkRequest) -> None:
        pid = os.fork()
        if pid == 0:
            self._live(birth)
        self._children[pid] = birth.number
        _tell(ForkReply(birth.number, pid))

    def _bury(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _tell(ForkReply(self._children.pop(pid), pid, os.waitstatus_to_exitcode(status)))

    def _live(self, birth: ForkRequest) -> NoReturn:
        """In the child, which never returns into the nursery."""
        code = 1
        try:
            log = os.open(birth.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            threading.Thread(target=_end_with_whoever_ordered, daemon=True).start()
            self._carry_out(bytes(birth.order))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _tell(news: ForkReply) -> None:
    os.write(1, msgspec.json.encode(news) + b"\n")


def _end_with_whoever_ordered() -> None:
    """Look whether anybody is at the other end, and read nothing: the orders are not for us."""
    other_end = select.poll()
    other_end.register(0, 0)
    other_end.poll()
    os._exit(1)


_ROOT: Final = Path(__file__).parents[1]
_START: Final = 60.0
_END: Final = 15.0


class TooLate(Exception):
    """Something did not happen in time. The text says what."""


def until(holds: Callable[[], object], *, within: float, what: str) -> None:
    """Look until it holds; `TooLate` after so many seconds."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TooLate(f"not within {within:g} s: {what}")
        time.sleep(0.01)


class _Server:
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

    def lines(self, *, within: float = 0.0) -> list[bytes]:
        """What it said since it was last asked; nothing yet is waited for."""
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        if select.select([answers], [], [], within)[0]:
            piece = os.read(answers, 65_536)
            if not piece:
                raise TooLate(f"a process of the matrix has ended: {self._log.read_text()[-500:]}")
            self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()


class Consumer(_Server):
    """The HTTP server of a run."""

    def __init__(self, folder: Path) -> None:
        super().__init__("proof.crash.consumer", str(folder), log=folder / "consumer.log")
        (port,) = self.lines(within=_START) or [b"0"]
        self.url = f"http://127.0.0.1:{int(port)}"


class ForkServer(_Server):
    """Begins programs without waiting for an interpreter. `module` is the nursery that knows their orders."""

    def __init__(self, folder: Path, *, module: str = "proof.crash.programs") -> None:
        super().__init__(module, log=folder / "nursery.log")
        self._begun: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._births = 0

    def start(self, order: msgspec.Struct, *, log: Path) -> Program:
        """Have an order carried out by a process of its own."""
        self._births += 1
        self.tell(msgspec.json.encode(ForkRequest(self._births, msgspec.Raw(msgspec.json.encode(order)), str(log))))
        deadline = time.monotonic() + _START
        while self._births not in self._begun:
            if time.monotonic() > deadline:
                raise TooLate(f"not within {_START:g} s: a process begins")
            self._hear(within=1.0)
        return Program(self._births, self._begun[self._births], self, log=log)

    def exit_code(self, number: int) -> int | None:
        """What the process of that birth came to; None while it runs."""
        self._hear()
        return self._ended.get(number)

    def _hear(self, *, within: float = 0.0) -> None:
        for line in self.lines(within=within):
            news = msgspec.json.decode(line, type=ForkReply)
            if news.exit_code is None:
                self._begun[news.number] = news.pid
            else:
                self._ended[news.number] = news.exit_code


class Program:
    """One process. Its log goes to a file."""

    def __init__(self, number: int, pid: int, fork_server: ForkServer, *, log: Path) -> None:
        self._number = number
        self.pid: Final = pid
        self._nursery = fork_server
        self.log = log

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a death by a signal is its number below zero."""
        return self._nursery.exit_code(self._number)

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    @property
    def was_killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    def terminate(self) -> None:
        """SIGTERM: stop gracefully."""
        self._signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """Stop gracefully, and wait. Answers the exit code; None if it did not end in time."""
        self.terminate()
        with suppress(TooLate):
            until(lambda: self.has_ended, within=_END, what="it stops")
        return self.exit_code

    def end(self) -> None:
        """However it can be ended. It may have ended already."""
        self._signal(signal.SIGKILL)
        until(lambda: self.has_ended, within=_END, what="it ends")

    def _signal(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
