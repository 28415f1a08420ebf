"""What mypy tells a user with its default settings. What it must accept is in `tests/support/outbox_typing.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MISTAKES = """
import aiosqlite
from pillarbox import Inbox, Message, Outbox, Relay

async def handle(outbox: Outbox, inbox: Inbox, message: Message, tx: aiosqlite.Connection) -> None:
    outbox.publish(tx, {}, type="a")  # unused-coroutine
    outbox.publish(tx, [{}], type="a")  # unused-coroutine
    outbox.send(tx, {}, type="a")  # unused-coroutine
    inbox.accept(tx, message)  # unused-coroutine
    await outbox.publish(tx, {}, type="a", colour="red")  # call-overload
    new: str = await inbox.accept(tx, message)  # assignment
    await Relay("sqlite:///shop.db", {"billing": 7}).run()  # arg-type

from pillarbox import Rellay  # attr-defined
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The error code of each line that mypy reports."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "mistakes.py").write_text(MISTAKES, "utf-8")
    (folder / "mypy.ini").write_text("[mypy]\n", "utf-8")
    cache = Path(__file__).parents[2] / ".mypy_cache" / "of_users"
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", f"--cache-dir={cache}"]
    ran = subprocess.run([*command, "mistakes.py"], cwd=folder, capture_output=True, text=True, check=False)
    errors = [line for line in ran.stdout.splitlines() if line.startswith("mistakes.py:") and ": error: " in line]
    return {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in errors}


def test_mypy_reports_each_mistake_and_nothing_else(reported: dict[int, str]) -> None:
    lines = enumerate(MISTAKES.splitlines(), start=1)
    assert reported == {number: line.partition("  # ")[2] for number, line in lines if "  # " in line}
