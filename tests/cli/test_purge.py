"""`pillarbox purge`: counts first, asks, and writes into the journal."""

from __future__ import annotations

from pathlib import Path

from pillarbox.relay.archive import read_archive
from tests.support.cli.shop import Shop


def test_purging_counts_first_and_asks(shop: Shop) -> None:
    shop.publish(2, to="billing")
    shop.fail("true", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered', status_at = 0 where id = 1")
    assert shop.run_json("purge", "--dry-run")["matched"]["delivered"] == 1
    assert shop.run("purge").code == 2
    assert shop.rows("select 1 from pillarbox_journal where action = 'purged'") == []
    assert shop.run_json("purge", "--yes")["removed"] == {"delivered": 1}
    lines = shop.rows("select destination, by, detail from pillarbox_journal where action = 'purged'")
    assert [tuple(line) for line in lines] == [("*", "ann", "1 delivered")]
    assert shop.number("pillarbox_history") == 1


def test_purging_archives_first(shop: Shop, tmp_path: Path) -> None:
    shop.publish(2, to="billing")
    shop.fail("true", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered', status_at = 0")
    (tmp_path / "file").write_text("no folder")
    refused = shop.run("purge", "--yes", "--archive", str(tmp_path / "file"))
    assert (refused.code, shop.number("pillarbox_history")) == (1, 2)
    assert "cannot be written" in refused.err
    assert "Traceback" not in refused.err
    assert shop.run_json("purge", "--yes", "--archive", str(tmp_path / "archive"))["removed"] == {"delivered": 2}
    assert sorted(message.id for message in read_archive(tmp_path / "archive")) == [1, 2]
