"""`pillarbox pause` and `pillarbox resume`."""

from __future__ import annotations

from tests.support.cli.shop import Shop


def test_pausing_and_resuming(shop: Shop) -> None:
    assert shop.run_json("pause", "billing", "--reason", "moving")["paused"]
    assert "paused by ann" in shop.run("status").out
    assert shop.run_json("resume", "billing")["changed"]
    assert not shop.run_json("resume", "billing")["changed"]
    actions = shop.rows("select action, by, error from pillarbox_journal order by id")
    assert [tuple(row) for row in actions] == [("paused", "ann", "moving"), ("resumed", "ann", None)]
    assert shop.run("pause", "no such;name").code == 2
