"""How programs begin without waiting for an interpreter: a nursery imports once, and forks for each order.

An order is a line of JSON on standard input; what a child comes to is a line on standard output. When whoever gives the
orders dies, however it dies, standard input closes, and nursery and children end.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

__all__ = ["Birth", "News", "nurse"]

_LOOK: Final = 0.005

CarryOut = Callable[[bytes], None]
"""Does what an order says. Runs in a child, until its end."""


class Birth(msgspec.Struct, frozen=True):
    """Have this order carried out by a process of its own."""

    number: int
    """Process ids come again; this does not."""
    order: msgspec.Raw
    log: str


class News(msgspec.Struct, frozen=True):
    """Of a process: it has begun, or what it came to."""

    number: int
    pid: int
    exit_code: int | None = None


def nurse(carry_out: CarryOut) -> None:
    """Until standard input ends."""
    _Nursery(carry_out).run()


class _Nursery:
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
                self._bear(msgspec.json.decode(line, type=Birth))
            self._bury()

    def _bear(self, birth: Birth) -> None:
        pid = os.fork()
        if pid == 0:
            self._live(birth)
        self._children[pid] = birth.number
        _tell(News(birth.number, pid))

    def _bury(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _tell(News(self._children.pop(pid), pid, os.waitstatus_to_exitcode(status)))

    def _live(self, birth: Birth) -> NoReturn:
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


def _tell(news: News) -> None:
    os.write(1, msgspec.json.encode(news) + b"\n")


def _end_with_whoever_ordered() -> None:
    """Look whether anybody is at the other end, and read nothing: the orders are not for us."""
    other_end = select.poll()
    other_end.register(0, 0)
    other_end.poll()
    os._exit(1)
