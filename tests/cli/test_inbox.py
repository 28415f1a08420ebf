"""`pillarbox inbox …`: list, redrive and discard failed messages of a consumer."""

from __future__ import annotations

from tests.support.cli.shop import Shop


def test_failed_messages_of_an_inbox(shop: Shop) -> None:
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_inbox (consumer, source, message_id, status, attempts, last_error, message) "
            "values ('mailer', '/shop', 'm1', 'failed', 3, 'Timeout', x'00'), "
            "('mailer', '/shop', 'm2', 'failed', 3, 'Timeout', x'00')"
        )
    found = shop.run_json("inbox", "list", "--consumer", "mailer")["failures"]
    assert [(one["message_id"], one["type"]) for one in found] == [("m1", "(malformed)"), ("m2", "(malformed)")]
    assert shop.run_json("inbox", "redrive", "m1")["redriven"] == 1
    assert shop.run("inbox", "discard", "--consumer", "mailer", "--reason", "x").code == 2
    assert shop.run_json("inbox", "discard", "--consumer", "mailer", "--reason", "x", "--yes")["discarded"] == 1
    states = shop.rows("select message_id, status from pillarbox_inbox order by 1")
    assert [tuple(row) for row in states] == [("m1", "started"), ("m2", "done")]
