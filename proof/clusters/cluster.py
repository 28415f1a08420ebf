"""A cluster and its nodes, as the run sees them: what can be killed, frozen and restarted, and where messages go."""

from __future__ import annotations

import os
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from proof.judge import NumberedRow
from proof.processes import wait_until
from tests.support.private_program import PrivateProgram
from tests.support.servers import ServerMissing

__all__ = ["Cluster", "Node", "Target", "list_tree", "send_signal", "wait_until"]

HOST: Final = "127.0.0.1"
_STOP: Final = 180.0


class Node(Protocol):
    """One member of a cluster. Its methods block until done; `start` returns when its process runs."""

    @property
    def name(self) -> str:
        """Its name in the cluster, for people."""

    def list_pids(self) -> Sequence[int]:
        """Return the processes of this node, all of which we started."""

    def start(self) -> None:
        """Start it, or start it again with the data that it has."""

    def stop(self) -> None:
        """Stop it in order, as an upgrade does."""

    def close(self) -> None:
        """Kill it, and remove its files."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages of one run are written, and where they go."""

    backend: str
    """`postgres`, `mariadb` or `sqlite`."""
    store: str
    """The URL of the store, with all its servers."""
    to: str | None = None
    """The URL of the broker, with all its servers. None: a file."""


class Cluster(ABC):
    """A cluster with its data in a temporary folder. Leaving the block ends its processes."""

    name: str
    may_undo: bool = False
    """It may forget what it has acknowledged: replication to the next leader is not awaited."""
    promise: str
    """What the engine promises, in a sentence for the page."""
    freeze: float = 15.0
    """Seconds for which the leader is frozen."""

    restarts: bool = False
    """There is no other node that takes over: a supervisor starts the one that died."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"pillarbox-cluster-{self.name}-"))
        self.folder.chmod(0o755)
        self.nodes: list[Node] = []

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Start all nodes, and return when the cluster is whole; raise `ServerMissing` if it cannot be had."""

    @abstractmethod
    def close(self) -> None:
        """End every process, and remove the files."""

    @abstractmethod
    def read_version(self) -> str:
        """Return the names and versions of what runs."""

    @abstractmethod
    def prepare(self, run: str, folder: Path) -> Target:
        """Make an empty place for the messages of this run."""

    @abstractmethod
    def find_leader(self, target: Target) -> Node:
        """Return the node that takes the writes of this run; raise any error while there is none."""

    @abstractmethod
    def is_whole(self, target: Target | None) -> bool:
        """Return whether every node is there and has caught up. May raise any error while it is not."""

    def read_arrivals(self, target: Target) -> list[NumberedRow]:
        """Read all messages from the broker, in its order. Only where messages go to this cluster."""
        raise NotImplementedError

    def wait_until_whole(self, target: Target | None, *, within: float = 180.0) -> None:
        """Wait until every node is there and has caught up; raise `TimedOut` if that takes too long."""
        wait_until(lambda: holds(lambda: self.is_whole(target)), within=within, what=f"{self.name} is whole")


def holds(check: Callable[[], bool]) -> bool:
    """Return what a check says; an error, of whatever driver, says no."""
    try:
        return check()
    except Exception:
        return False


# --- processes ---


def list_tree(pid: int | None) -> list[int]:
    """Return a process and all that it started, as far as they run."""
    if pid is None:
        return []
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            # The name is in brackets and may hold anything. The state and the parent follow it.
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    tree = [pid]
    for one in tree:
        tree += children.get(one, [])
    return tree


def send_signal(pids: Sequence[int], how: signal.Signals) -> None:
    """Send a signal to processes of ours. One that has ended meanwhile is fine."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


def stop_program(program: PrivateProgram) -> None:
    """Stop a server in order, and wait for as long as a database may take on a busy machine."""
    pid = program.pid
    if pid is not None:
        send_signal([pid], signal.SIGTERM)
        wait_until(lambda: program.pid is None, within=_STOP, what=f"{program.program.name} stops")


@contextmanager
def keep_missing(what: str) -> Iterator[None]:
    """Add to `ServerMissing` how to get what is missing."""
    try:
        yield
    except ServerMissing as reason:
        raise ServerMissing(f"{what} ({reason})") from None
