"""Transactions over the path of a SQLite file."""

from __future__ import annotations

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
