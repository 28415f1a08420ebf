"""`pillarbox purge`: counts first, asks, and writes into the journal."""

from __future__ import annotations

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
