"""A user who may only read an SQLite file sees everything, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.support.cli.program import PROGRAM, RunResult, environment
from tests.support.cli.shop import Shop

_SETPRIV = shutil.which("setpriv")
_WITHOUT_RIGHTS = ["-dac_override,-dac_read_search"]
"""Root may write everything, unless it gives these up."""

READS = [
    ["status"], ["check"], ["failures"], ["failures", "--attempts"], ["messages", "list"], ["messages", "show", "1"],
    ["relays"], ["lanes"], ["inbox", "list"], ["schema", "verify"],
    ["messages", "redrive", "--topic", "x", "--dry-run"], ["purge", "--dry-run"],
    ["purge", "--dry-run", "--store", "other=sqlite:///shop.db"],
    ["inbox", "redrive", "--error", "x", "--dry-run"],
    ["inbox", "discard", "--error", "x", "--reason", "y", "--dry-run"],
]  # fmt: skip
CHANGES = [
    ["messages", "redrive", "1"],
    ["pause", "hooks"],
    ["purge", "--yes"],
    ["schema", "downgrade", "--to", "8", "--yes"],
]

Run = Callable[..., RunResult]


@pytest.fixture
def reader(shop: Shop) -> Iterator[Run]:
    """Runs the program as a user that can only read the file and its folder."""
    if os.geteuid() == 0 and _SETPRIV is None:
        pytest.skip("root may write everything: install setpriv, of util-linux")
    drop = [f"--bounding-set={_WITHOUT_RIGHTS[0]}", f"--inh-caps={_WITHOUT_RIGHTS[0]}"]
    prefix = [_SETPRIV, *drop] if os.geteuid() == 0 and _SETPRIV else []

    def run(*words: str) -> RunResult:
        ran = subprocess.run(
            [*prefix, PROGRAM, *words, "--store", shop.url], cwd=shop.folder, env=environment({}), check=False,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        return RunResult(ran.returncode, ran.stdout, ran.stderr)

    shop.publish(2)
    shop.fail("id = 1", "no account")
    with closing(sqlite3.connect(shop.file)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    for path in shop.folder.glob("shop.db-*"):
        path.unlink()
    shop.file.chmod(0o444)
    shop.folder.chmod(0o555)
    yield run
    shop.folder.chmod(0o755)


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_what_only_reads_works(reader: Run, words: list[str]) -> None:
    ran = reader(*words)
    assert ran.code in (0, 7), ran
    assert "Error" not in ran.err


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_what_changes_something_is_refused_in_a_sentence(reader: Run, words: list[str]) -> None:
    ran = reader(*words)
    assert ran.code in (2, 3), ran
    assert "cannot be written" in ran.sentence


def test_a_log_that_another_process_writes_is_read_too(reader: Run, shop: Shop) -> None:
    shop.folder.chmod(0o755)
    shop.file.chmod(0o644)
    with closing(sqlite3.connect(shop.file)) as writer:
        writer.execute("pragma journal_mode = wal")
        writer.execute("update pillarbox_history set last_error = 'only in the log'")
        writer.commit()
        shop.file.chmod(0o444)
        shop.folder.chmod(0o555)
        assert "only in the log" in reader("failures").out


def test_a_restore_is_tried_without_writing(reader: Run, shop: Shop) -> None:
    shop.folder.chmod(0o755)
    shop.file.chmod(0o644)
    archive = str(shop.folder / "archive")
    assert shop.run("purge", "--yes", "--archive", archive, PILLARBOX_RELAY_RETENTION_FAILED="0").code == 0
    for path in shop.folder.glob("shop.db-*"):
        path.unlink()
    shop.file.chmod(0o444)
    shop.folder.chmod(0o555)
    assert "1 message would be restored." in reader("archive", "restore", archive, "--dry-run").out
