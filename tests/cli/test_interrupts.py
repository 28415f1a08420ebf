"""Ctrl-C in a change of many messages: it says how much is done, and the same command does the rest."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest

from tests.support.cli.program import PROGRAM, environment
from tests.support.cli.shop import Shop

COUNT = 12_000

COMMANDS = {
    "redrive": (["messages", "redrive", "--destination", "hooks", "--yes"], "status = 'failed'"),
    "discard": (["messages", "discard", "--state", "failed", "--reason", "x", "--yes"], "status = 'failed'"),
    "replay": (["messages", "replay", "--destination", "hooks", "--yes"], "status = 'delivered'"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_says_how_many_are_done_and_the_command_can_be_repeated(shop: Shop, name: str) -> None:
    words, left = COMMANDS[name]
    state = "delivered" if name == "replay" else "failed"
    shop.publish(COUNT, keys=COUNT)
    shop.fail("1", "no account")
    with shop.connect() as tx:
        tx.execute(f"update pillarbox_history set status = '{state}'")
    code, said = interrupt(shop, *words, when=f"select count(*) < {COUNT} from pillarbox_history where {left}")
    done = COUNT - shop.number(f"pillarbox_history where {left}")
    assert code == 130
    (counted,) = re.findall(
        r"([\d,]+) of 12,000 are done, and stay done; a batch under way may be done too\. Run", said
    )
    assert 0 <= done - int(counted.replace(",", "")) <= 1_000
    assert 0 < done < COUNT
    assert shop.run(*words).code == 0
    assert shop.number(f"pillarbox_history where {left}") == 0


def interrupt(shop: Shop, *words: str, when: str) -> tuple[int, str]:
    """Run a command, press Ctrl-C as soon as the query answers true, and return its exit code and its stderr."""
    with subprocess.Popen(
        [PROGRAM, *words], cwd=shop.folder, env=environment({"PILLARBOX_STORE": shop.url}),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        ends = time.monotonic() + 60
        with closing(sqlite3.connect(shop.file, timeout=30)) as watch:
            while not watch.execute(when).fetchone()[0]:
                assert time.monotonic() < ends
                assert program.poll() is None, program.communicate()
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    return program.returncode, said
