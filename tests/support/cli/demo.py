"""Runs the real demo with few orders, and checks what must be true of every run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from pillarbox.demo.scenario import Scenario, plan_orders
from tests.support.cli.program import PROGRAM, RunResult, environment, pillarbox

__all__ = [
    "FIELDS",
    "ORDERS",
    "check_result",
    "list_processes",
    "needs_proc",
    "read_progress",
    "run_demo",
    "start_demo",
    "wait_for_output",
]

FIELDS = [
    "committed", "rolled_back", "delivered", "effects", "lost", "ghosts", "out_of_order", "received", "duplicates",
    "absorbed", "kills", "kills_while_delivering", "outages", "failed",
]  # fmt: skip
ORDERS = 120
needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc to see processes")


def run_demo(*arguments: str, folder: Path) -> RunResult:
    """Run the demo to its end, with its files below this folder."""
    return pillarbox("demo", "--orders", str(ORDERS), *arguments, cwd=folder, TMPDIR=str(folder))


def check_result(ran: RunResult) -> None:
    """Check the result."""
    result = json.loads(ran.out.splitlines()[-1])
    assert (ran.code, list(result)) == (0, FIELDS), ran
    assert result["committed"] == ORDERS
    assert result["rolled_back"] == sum(not attempt.commits for attempt in plan_orders(Scenario(orders=ORDERS, seed=5)))
    assert result["lost"] == result["ghosts"] == result["out_of_order"] == 0
    assert (result["outages"], result["failed"]) == (1, 1)
    assert result["effects"] == ORDERS - 1
    assert result["absorbed"] == result["duplicates"] == result["received"] - result["effects"]
    assert result["kills"] >= 3
    assert result["delivered"] == read_progress(ran)[-1]["delivered"] >= ORDERS - 1


def read_progress(ran: RunResult) -> list[dict[str, int]]:
    """Return the numbers of each line of progress."""
    lines = [line for line in ran.err.splitlines() if "committed" in line and "delivered" in line]
    names = ("committed", "delivered", "received", "in flight", "failed", "relays killed")
    return [{name: int(re.search(rf"\b{name} (\d+)", line)[1]) for name in names} for line in lines]  # type: ignore[index]


@contextmanager
def start_demo(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    with subprocess.Popen(
        [PROGRAM, "demo", "--orders", str(ORDERS), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env=environment({"TMPDIR": str(folder)}),
    ) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr
        finally:
            process.kill()


def wait_for_output(stderr: IO[str], words: str) -> None:
    for line in stderr:
        if words in line:
            return
    pytest.fail(f"it ended without saying {words!r}")


def list_processes(folder: Path) -> list[int]:
    """Return the ids of processes that work below this folder."""
    found = []
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # gone already, or not ours
            if Path(os.readlink(cwd).removesuffix(" (deleted)")).is_relative_to(folder):
                found.append(int(cwd.parent.name))
    return found
