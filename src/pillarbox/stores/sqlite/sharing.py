"""Threads, and one look for commits, that all SQLite stores of a process share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from pillarbox.tasks import cancel_all

__all__ = ["CommitPoller", "SerialExecutor", "SharedFiles"]

T = TypeVar("T")

_SHORTEST: Final = 0.005
_PER_STORE: Final = 0.0001
"""Seconds between two looks at all files, and what each of them adds."""


class SharedFiles:
    """Threads for the connections of any number of files, and the one poller of their commits."""

    def __init__(self, *, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pillarbox-sqlite")
        self.poller: Final = CommitPoller()

    def open_executor(self) -> SerialExecutor:
        """Return an executor for one connection."""
        return SerialExecutor(self._threads)

    def close(self) -> None:
        """End the threads, when their calls are done."""
        self._threads.shutdown(wait=False)


class SerialExecutor(Executor):
    """Runs the calls for one connection one after the other, in whatever thread of a pool is free.

    So a file that is locked holds one thread of the pool for each of its connections, and no more.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._guard = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_running = False

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            self._calls.append((future, lambda: function(*arguments, **named)))
            if self._is_running:
                return future
            self._is_running = True
        self._threads.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Run one call, then queue behind those of other connections: no file keeps a thread while others wait."""
        with self._guard:
            future, call = self._calls.popleft()
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        with self._guard:
            self._is_running = bool(self._calls)
            if not self._is_running:
                return
        self._threads.submit(self._run_next)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the threads are shared, and end with them."""


class _Watch:
    """A file that is looked at, and its state when somebody last looked."""

    def __init__(self, path: Path, read_version: Callable[[], Awaitable[int | None]], wake: Callable[[], None]) -> None:
        self._log = f"{path}-wal"
        self._read_version = read_version
        self._wake = wake
        self._seen: object = None
        self._version: int | None = None
        self._is_certain = False
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Ask the store for its version if the write-ahead log has changed, and once more after that.

        Two commits in one tick of the file system's clock have the same time. The second may come after the look.
        """
        if self._task is not None and not self._task.done():
            return
        seen = _read_state(self._log)
        if seen == self._seen and self._is_certain:
            return
        self._is_certain = seen == self._seen
        self._seen = seen
        self._task = asyncio.create_task(self._compare())

    async def _compare(self) -> None:
        version = await self._read_version()
        if version is None or version != self._version:
            self._version = version
            self._wake()

    async def close(self) -> None:
        if self._task is not None:
            await cancel_all([self._task])


def _read_state(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class CommitPoller:
    """Wakes the stores into whose files somebody else has committed. One task looks at all of them.

    A look at a file's write-ahead log costs a microsecond or two, a look by SQLite twenty times that.
    """

    def __init__(self) -> None:
        self._watches: set[_Watch] = set()
        self._task: asyncio.Task[None] | None = None
        self.is_listening = True

    @asynccontextmanager
    async def watch(
        self, path: Path, read_version: Callable[[], Awaitable[int | None]], wake: Callable[[], None]
    ) -> AsyncIterator[CommitPoller]:
        """Call `wake` soon after another connection committed, while the block runs.

        `read_version` returns the version of the file that only others change; None while it cannot be read.
        """
        watch = _Watch(path, read_version, wake)
        self._watches.add(watch)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            self._watches.discard(watch)
            await watch.close()
            if not self._watches and self._task is not None:
                task, self._task = self._task, None
                await cancel_all([task])

    async def _run(self) -> None:
        while True:
            for watch in list(self._watches):
                watch.look()
            await asyncio.sleep(_SHORTEST + _PER_STORE * len(self._watches))
