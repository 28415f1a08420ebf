"""`pillarbox inbox …`: list, show, redrive and discard failed messages of a consumer."""

from __future__ import annotations

import pytest

from pillarbox.cloudevents import HTTP, CloudEvent, to_binary
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import encode_incoming
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


def _keep(shop: Shop, message_id: str, content: bytes | None) -> None:
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_inbox (consumer, source, message_id, status, attempts, last_error, message) "
            "values ('mailer', '/shop', ?, 'failed', 3, 'Timeout', ?)",
            (message_id, content),
        )


def test_a_failed_message_is_shown_with_what_arrived(shop: Shop) -> None:
    event = CloudEvent(
        message_id="m1", source="/shop", type="orders.placed", topic="orders", key="k1", payload=b'{"n": 1}',
        headers={"tenant": "a\x1b[2J"}, correlation_id="c1",
    )  # fmt: skip
    headers, body = to_binary(event, binding=HTTP)
    fallback = FallbackIdentity(message_id="m1", source="http:", type="", topic="")
    _keep(shop, "m1", encode_incoming(IncomingMessage(headers=headers, body=body, binding=HTTP, fallback=fallback)))
    (shown,) = shop.run_json("inbox", "show", "m1")["failures"]
    assert (shown["type"], shown["key"], shown["error"], shown["size"]) == ("orders.placed", "k1", "Timeout", 8)
    assert "payload" not in shown
    (shown,) = shop.run_json("inbox", "show", "m1", "--payload")["failures"]
    assert shown["payload"] == {"n": 1}
    text = shop.run("inbox", "show", "m1", "--payload").out
    assert '{"n": 1}' in text
    assert "\x1b" not in text
    assert shop.run("inbox", "show", "m1", "--consumer", "biller").code == 5
    assert "No failed message of an inbox is called m2" in shop.run("inbox", "show", "m2").err


@pytest.mark.parametrize("content", [None, b"\x00", encode_incoming(
    IncomingMessage(headers={"ce-specversion": "1.0"}, body=b"\xff", binding=HTTP,
                    fallback=FallbackIdentity(message_id="1", source="http:", type="", topic="")))])  # fmt: skip
def test_one_that_cannot_be_read_is_shown_all_the_same(shop: Shop, content: bytes | None) -> None:
    _keep(shop, "m1", content)
    ran = shop.run("inbox", "show", "m1", "--payload")
    assert ran.code == 0
    assert "Timeout" in ran.out


def test_a_misspelled_consumer_gets_the_nearest(shop: Shop) -> None:
    _keep(shop, "m1", b"\x00")
    for words in (("list",), ("redrive", "--yes"), ("discard", "--yes", "--reason", "x")):
        ran = shop.run("inbox", *words, "--consumer", "mailr")
        assert "No consumer mailr has a record. Did you mean mailer? The inbox has records of mailer." in ran.err
    assert "has a record" not in shop.run("inbox", "list", "--consumer", "mailer", "--error", "none of these").err


def test_one_whose_content_was_not_kept_is_left_alone(shop: Shop) -> None:
    _keep(shop, "m1", None)
    _keep(shop, "m2", b"\x00")
    ran = shop.run("inbox", "redrive", "--consumer", "mailer", "--yes")
    assert ran.out == "1 redriven.\n"
    assert "1 message cannot be redriven" in ran.err
    assert shop.run_json("inbox", "discard", "m1", "--reason", "sent again")["discarded"] == 1


def test_failed_messages_of_inboxes_are_in_status_and_check(shop: Shop) -> None:
    (shop.folder / "pillarbox.toml").write_text("[alerts]\nrelays = 0\n")
    assert shop.run("check").code == 0
    _keep(shop, "m1", b"\x00")
    _keep(shop, "m2", b"\x00")
    status = shop.run_json("status")
    assert [(one["consumer"], one["failed"]) for one in status["inboxes"]] == [("mailer", 2)]
    assert [alert["name"] for alert in status["alerts"]] == ["inbox_failed"]
    assert "mailer" in shop.run("status").out
    ran = shop.run("check")
    assert ran.code == 7
    assert "2 messages that mailer could not handle need attention" in ran.out
    assert 'consumer="mailer"' in shop.run("check", "-o", "prometheus").out
    assert "inbox_failed=2" in shop.run("check", "-o", "nagios").out
    (shop.folder / "pillarbox.toml").write_text("[alerts]\nrelays = 0\ninbox_failed = 2\n")
    assert shop.run("check").code == 0


def test_purge_removes_failed_messages_and_starts_past_their_retention(shop: Shop) -> None:
    _keep(shop, "m1", b"\x00")
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_inbox (consumer, source, message_id, status) values ('mailer', '/', 'm2', 'started')"
        )
        tx.execute("update pillarbox_inbox set status_at = 0")
    (shop.folder / "pillarbox.toml").write_text('[relay.retention]\ninbox_failed = "forever"\n')
    assert shop.run("purge", "--yes").code == 0
    assert [row[0] for row in shop.rows("select message_id from pillarbox_inbox")] == ["m1"]
    (shop.folder / "pillarbox.toml").write_text('[relay.retention]\ninbox_failed = "90d"\n')
    assert shop.run("purge", "--yes").code == 0
    assert shop.number("pillarbox_inbox") == 0
