"""Transactions over the path of a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pillarbox.consumer.unit_of_work import build_transactions


def test_a_block_over_a_file_commits_at_its_end_and_is_undone_by_an_error(tmp_path: Path) -> None:
    begin = build_transactions(tmp_path / "shop.db").synchronous
    assert begin is not None
    with begin() as connection:
        connection.execute("create table bill (number integer)")
        connection.execute("insert into bill values (1)")
    with pytest.raises(ValueError, match="no"), begin() as connection:  # noqa: PT012 - the block is what is tested
        connection.execute("insert into bill values (2)")
        raise ValueError("no")
    with begin() as connection:
        assert connection.execute("select number from bill").fetchall() == [(1,)]


def test_foreign_keys_hold_in_a_transaction_of_a_file(tmp_path: Path) -> None:
    begin = build_transactions(tmp_path / "shop.db").synchronous
    assert begin is not None
    with begin() as connection:
        connection.execute("create table orders (number integer primary key)")
        connection.execute("create table bill (number integer references orders)")
    with pytest.raises(sqlite3.IntegrityError), begin() as connection:
        connection.execute("insert into bill values (1)")


def test_a_transaction_of_a_file_locks_out_other_writers_from_its_first_statement(tmp_path: Path) -> None:
    """One that reads first could otherwise not write after another's commit: it would repeat for nothing."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("pragma journal_mode = wal")
        other.execute("pragma busy_timeout = 0")
        other.execute("create table stock (left_over integer)")
        other.execute("insert into stock values (1)")
        begin = build_transactions(file).synchronous
        assert begin is not None
        with begin() as tx:
            (left,) = tx.execute("select left_over from stock").fetchone()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("update stock set left_over = 0")
            tx.execute("update stock set left_over = ?", (left + 1,))
        assert other.execute("select left_over from stock").fetchone() == (2,)
