"""What people do from the terminal: look, act, and find every act in the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.program import RunResult, pillarbox
from tests.support.cli.relay_process import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    await made.install()
    return made


def run(shop: Shop, *arguments: str) -> RunResult:
    return pillarbox(*arguments, cwd=shop.folder, PILLARBOX_STORE=shop.url, PILLARBOX_BY="ann")


def told(shop: Shop, *arguments: str) -> Any:
    ran = run(shop, *arguments, "-o", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def fail(shop: Shop, where: str, error: str) -> None:
    """Close messages as failed, as a relay would."""
    columns = (
        "id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, "
        "subject, correlation_id, causation_id, event_time, created_at, available_at"
    )
    with shop.connect() as tx:
        tx.execute(
            f"insert into pillarbox_history ({columns}, attempts, last_error, status_at, status) "
            f"select {columns}, 5, ?, created_at, 'failed' from pillarbox_outbox where {where}",
            (error,),
        )
        tx.execute(f"delete from pillarbox_outbox where {where}")


# --- looking ---


def test_status_says_what_waits_and_who_delivers(shop: Shop) -> None:
    shop.publish(3, to="billing")
    status = told(shop, "status")
    (billing,) = status["destinations"]
    assert (billing["name"], billing["due"], billing["relays"]) == ("billing", 3, 0)
    assert [alert["name"] for alert in status["alerts"]] == ["unserved"]
    text = run(shop, "status").out
    assert "billing" in text
    assert "No relay is alive." in text
    assert "CRITICAL: No relay serves billing, and 3 messages wait." in text


def test_status_of_nothing(shop: Shop) -> None:
    text = run(shop, "status").out
    assert "No message was ever written here." in text
    assert "All is well." in text


def test_watching_goes_on_as_often_as_asked(shop: Shop) -> None:
    ran = run(shop, "status", "--watch", "--count", "3", "--interval", "10ms", "-o", "json")
    assert ran.code == 0
    assert [json.loads(line)["destinations"] for line in ran.out.splitlines()] == [[], [], []]


def test_check_ends_as_urgently_as_it_is(shop: Shop) -> None:
    assert run(shop, "check").code == 0
    assert run(shop, "check").out == "All is well.\n"
    shop.publish(1, to="billing")
    ran = run(shop, "check", "-o", "json")
    assert (ran.code, json.loads(ran.out)["worst"]) == (7, "critical")
    ran = run(shop, "check", "-o", "nagios")
    assert ran.code == 2
    assert ran.out.startswith("CRITICAL: No relay serves billing")
    assert ran.out.count("\n") == 1
    assert (
        'outbox_alert{name="unserved",severity="critical",destination="billing"} 1'
        in run(shop, "check", "-o", "prometheus").out
    )


def test_thresholds_come_from_the_file(shop: Shop) -> None:
    shop.publish(2, to="billing")
    fail(shop, "true", "HTTP 422")
    assert run(shop, "check").code == 7
    (shop.folder / "pillarbox.toml").write_text("[alerts]\nfailed = 2\n")
    assert run(shop, "check").code == 0
    (shop.folder / "pillarbox.toml").write_text('[alerts]\noldest_warning = "2h"\n')
    ran = run(shop, "check")
    assert (ran.code, "below its warning" in ran.err) == (2, True)


def test_failures_are_grouped_by_what_they_have_in_common(shop: Shop) -> None:
    shop.publish(5, to="billing")
    fail(shop, "id <= 3", "no account 123456 for 'ann'")
    fail(shop, "id = 4", "no account 987654 for 'bob'")
    fail(shop, "id = 5", "HTTP 422")
    found = told(shop, "failures")["failures"]
    assert [(one["count"], one["error"]) for one in found] == [(4, "no account … for …"), (1, "HTTP 422")]
    assert [one["count"] for one in told(shop, "failures", "--error", "http")["failures"]] == [1]


def test_messages_are_listed_page_by_page(shop: Shop) -> None:
    shop.publish(5, to="billing")
    shop.publish(1, to="mail")
    first = run(shop, "messages", "list", "--destination", "billing", "--limit", "3", "-o", "jsonl")
    assert [json.loads(line)["id"] for line in first.out.splitlines()] == [1, 2, 3]
    assert "--after 3" in first.err
    rest = told(shop, "messages", "list", "--destination", "billing", "--limit", "3", "--after", "3")["messages"]
    assert [one["id"] for one in rest] == [4, 5]
    assert "payload" not in rest[0]
    empty = run(shop, "messages", "list", "--key", "nobody")
    assert (empty.code, empty.out, empty.err) == (0, "", "No message matches.\n")


def test_a_message_is_shown_with_its_journal_and_its_payload_only_if_asked(shop: Shop) -> None:
    shop.publish(1, to="billing")
    run(shop, "messages", "discard", "1", "--reason", "by hand")
    shown = told(shop, "messages", "show", "1")
    assert shown["messages"][0]["state"] == "discarded"
    assert "payload" not in shown["messages"][0]
    assert [(line["action"], line["by"]) for line in shown["journal"]] == [("discarded", "ann")]
    message_id = shown["messages"][0]["message_id"]
    assert told(shop, "messages", "show", message_id, "--payload")["messages"][0]["payload"] == {"n": 0}
    assert "by hand" in run(shop, "messages", "show", "1").out


# --- acting ---


def test_redriving_counts_first_and_moves_all_that_match(shop: Shop) -> None:
    shop.publish(4, to="billing")
    fail(shop, "id <= 3", "HTTP 422")
    dry = run(shop, "messages", "redrive", "--destination", "billing", "--dry-run", "-o", "json")
    assert (json.loads(dry.out)["matched"], json.loads(dry.out)["changed"]) == (3, 0)
    assert "3 messages would be redriven" in dry.err
    assert shop.number("pillarbox_history") == 3
    done = told(shop, "messages", "redrive", "--destination", "billing", "--error", "422", "--yes")
    assert (done["matched"], done["changed"]) == (3, 3)
    assert shop.number("pillarbox_history") == 0
    assert {by for (by,) in shop.rows("select by from pillarbox_journal")} == {"ann"}


def test_many_messages_are_not_changed_unasked(shop: Shop) -> None:
    shop.publish(2, to="billing")
    ran = run(shop, "messages", "discard", "--destination", "billing", "--reason", "x")
    assert ran.code == 2
    assert "add --yes" in ran.err
    assert shop.number("pillarbox_outbox") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("redrive",), "Say which messages to redrive"),
        (("redrive", "1", "--destination", "billing"), "ids or filters, not both"),
        (("redrive", "yesterday"), "neither the id nor the message id"),
        (("list", "--since", "someday"), "no time"),
        (("defer", "1", "--for", "someday"), "no time"),
        (("discard", "1"), "--reason"),
    ],
)
def test_wrong_usage_is_one_sentence_and_changes_nothing(shop: Shop, arguments: tuple[str, ...], expected: str) -> None:
    ran = run(shop, "messages", *arguments)
    assert ran.code == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_what_cannot_be_done_says_why(shop: Shop) -> None:
    shop.publish(1, to="billing")
    ran = run(shop, "messages", "replay", "1")
    assert (ran.code, "is pending and cannot be replayed" in ran.sentence) == (1, True)
    assert run(shop, "messages", "show", "99").code == 5
    assert run(shop, "messages", "redrive", "99").code == 5


def test_replay_and_defer(shop: Shop) -> None:
    shop.publish(2, to="billing")
    told(shop, "messages", "defer", "1", "--for", "2h")
    assert shop.number("pillarbox_outbox where id = 1 and available_at > created_at + 7000000000") == 1
    fail(shop, "id = 2", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered'")
    assert told(shop, "messages", "replay", "--since", "1h", "--yes")["changed"] == 1
    assert shop.number("pillarbox_outbox") == 2


def test_pausing_and_resuming(shop: Shop) -> None:
    assert told(shop, "pause", "billing", "--reason", "moving")["paused"]
    assert "paused by ann" in run(shop, "status").out
    assert told(shop, "resume", "billing")["changed"]
    assert not told(shop, "resume", "billing")["changed"]
    actions = shop.rows("select action, by, error from pillarbox_journal order by id")
    assert [tuple(row) for row in actions] == [("paused", "ann", "moving"), ("resumed", "ann", None)]
    assert run(shop, "pause", "no such;name").code == 2


def test_purging_counts_first_and_asks(shop: Shop) -> None:
    shop.publish(2, to="billing")
    fail(shop, "true", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered', status_at = 0 where id = 1")
    assert told(shop, "purge", "--dry-run")["matched"]["delivered"] == 1
    assert run(shop, "purge").code == 2
    assert shop.rows("select 1 from pillarbox_journal where action = 'purged'") == []
    assert told(shop, "purge", "--yes")["removed"] == {"delivered": 1}
    lines = shop.rows("select destination, by, detail from pillarbox_journal where action = 'purged'")
    assert [tuple(line) for line in lines] == [("*", "ann", "1 delivered")]
    assert shop.number("pillarbox_history") == 1


def test_nobody_delivers(shop: Shop) -> None:
    ran = run(shop, "relays")
    assert (ran.code, ran.out) == (0, "")
    assert "No relay is alive" in ran.err
    assert told(shop, "lanes") == {"lanes": []}


def test_failed_messages_of_an_inbox(shop: Shop) -> None:
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_inbox (consumer, source, message_id, status, attempts, last_error, message) "
            "values ('mailer', '/shop', 'm1', 'failed', 3, 'Timeout', x'00'), "
            "('mailer', '/shop', 'm2', 'failed', 3, 'Timeout', x'00')"
        )
    found = told(shop, "inbox", "list", "--consumer", "mailer")["failures"]
    assert [(one["message_id"], one["type"]) for one in found] == [("m1", "(malformed)"), ("m2", "(malformed)")]
    assert told(shop, "inbox", "redrive", "m1")["redriven"] == 1
    assert run(shop, "inbox", "discard", "--consumer", "mailer", "--reason", "x").code == 2
    assert told(shop, "inbox", "discard", "--consumer", "mailer", "--reason", "x", "--yes")["discarded"] == 1
    states = shop.rows("select message_id, status from pillarbox_inbox order by 1")
    assert [tuple(row) for row in states] == [("m1", "started"), ("m2", "done")]
