"""The process dies between the message and its commit."""

from __future__ import annotations

import multiprocessing
import signal
from typing import Final

import pytest

from tests.support.writers import child
from tests.support.writers.places import Place, orders, subjects

# Children fork from a process that has the drivers imported, and nothing open.
_PROCESSES: Final = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.writers.child"])


@pytest.mark.parametrize("point", ["given", "written", "committed"])
def test_killed_process_leaves_both_or_neither(kind: str, place: Place, point: child.Point) -> None:
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=child.run, args=(kind, place, point, theirs))
    process.start()
    try:
        assert ours.poll(60)
        assert ours.recv() == point
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    done = point == "committed"
    assert orders(place) == ([1] if done else [])
    assert subjects(place) == (["a", "b"] if done else [])
