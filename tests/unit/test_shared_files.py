"""Threads that SQLite files share: a connection has one of them at a time, and its calls keep their order."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from pillarbox.stores.sqlite.sharing import SharedFiles

WITHIN = 60


def test_a_file_that_is_locked_holds_one_thread_and_no_more() -> None:
    files, free = SharedFiles(threads=2), threading.Event()
    locked, other = files.open_executor(), files.open_executor()
    try:
        waits = [locked.submit(free.wait, WITHIN) for _ in range(10)]
        assert other.submit(lambda: "answered").result(WITHIN / 2) == "answered"
        free.set()
        assert all(wait.result(WITHIN) for wait in waits)
    finally:
        free.set()
        files.close()


def test_the_calls_of_one_connection_run_one_after_the_other() -> None:
    files, seen = SharedFiles(threads=4), list[int]()
    executor = files.open_executor()
    try:
        calls: list[Future[None]] = [executor.submit(seen.append, number) for number in range(200)]
        for call in calls:
            call.result(WITHIN)
    finally:
        files.close()
    assert seen == list(range(200))


def test_a_call_that_raises_does_not_end_the_others() -> None:
    files = SharedFiles(threads=1)
    executor = files.open_executor()
    try:
        bad, good = executor.submit(int, "x"), executor.submit(int, "7")
        assert isinstance(bad.exception(WITHIN), ValueError)
        assert good.result(WITHIN) == 7
    finally:
        files.close()
