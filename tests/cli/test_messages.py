"""`pillarbox messages …`: list, show, redrive, replay, discard and defer, each change in the journal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import subprocess

import pytest

from pillarbox.dashboard.filters import parse_search, to_flags
from tests.support.cli.program import PROGRAM, environment
from tests.support.cli.shop import Shop


def test_messages_are_listed_page_by_page(shop: Shop) -> None:
    shop.publish(5, to="billing")
    shop.publish(1, to="mail")
    first = shop.run("messages", "list", "--destination", "billing", "--limit", "3", "-o", "jsonl")
    assert [json.loads(line)["id"] for line in first.out.splitlines()] == [1, 2, 3]
    assert "--after 3" in first.err
    rest = shop.run_json("messages", "list", "--destination", "billing", "--limit", "3", "--after", "3")["messages"]
    assert [one["id"] for one in rest] == [4, 5]
    assert "payload" not in rest[0]
    empty = shop.run("messages", "list", "--key", "nobody")
    assert (empty.code, empty.out, empty.err) == (0, "", "No message matches.\n")


def test_what_is_over_is_listed_only_if_asked_for(shop: Shop) -> None:
    shop.publish(2, to="billing")
    shop.fail("true", "HTTP 422")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered' where id = 1")
    assert [one["id"] for one in shop.run_json("messages", "list")["messages"]] == [2]
    assert [one["id"] for one in shop.run_json("messages", "list", "--state", "delivered")["messages"]] == [1]


def test_messages_are_listed_by_their_ids_whatever_their_state(shop: Shop) -> None:
    shop.publish(3)
    shop.fail("id = 2", "no account")
    assert shop.run("messages", "discard", "3", "--reason", "x").code == 0
    first, second, _ = shop.run_json("messages", "list", "1", "2", "3")["messages"]
    assert [first["id"], second["id"]] == [1, 2]
    by_message_id = shop.run_json("messages", "list", first["message_id"])["messages"]
    assert [one["id"] for one in by_message_id] == [1]
    assert [one["id"] for one in shop.run_json("messages", "list", "1", "2", "--state", "failed")["messages"]] == [2]
    assert "not both" in shop.run("messages", "list", "1", "--stuck").err


@pytest.mark.parametrize(
    "query", ["id:1,2", "id:1 state:failed", "attempts:4", "dest:billing", "state:failed phase:held"]
)
def test_the_command_that_a_page_of_the_dashboard_shows_is_taken(shop: Shop, query: str) -> None:
    ran = shop.run("messages", "list", *shlex.split(to_flags(parse_search(query).filters)))
    assert ran.code == 0 or "There is no destination billing" in ran.err, ran


def test_a_message_is_shown_with_its_journal_and_its_payload_only_if_asked(shop: Shop) -> None:
    shop.publish(1, to="billing")
    shop.run("messages", "discard", "1", "--reason", "by hand")
    shown = shop.run_json("messages", "show", "1")
    assert shown["messages"][0]["state"] == "discarded"
    assert "payload" not in shown["messages"][0]
    assert [(line["action"], line["by"]) for line in shown["journal"]] == [("discarded", "ann")]
    message_id = shown["messages"][0]["message_id"]
    assert shop.run_json("messages", "show", message_id, "--payload")["messages"][0]["payload"] == {"n": 0}
    assert "by hand" in shop.run("messages", "show", "1").out


def test_a_message_is_shown_with_the_address_of_its_page_if_a_dashboard_is_configured(shop: Shop) -> None:
    shop.publish(1, to="billing")
    assert "Page:" not in shop.run("messages", "show", "1").out
    shown = shop.run("messages", "show", "1", PILLARBOX_DASHBOARD_URL="https://ops.example/box/")
    assert shown.out.splitlines()[-1] == "Page: https://ops.example/box/main/messages/1"
    (shop.folder / "pillarbox.toml").write_text(
        f'[stores.orders]\nurl = "{shop.url}"\n[stores.other]\nurl = "sqlite:///other.db"\n'
        '[dashboard]\nurl = "https://ops.example"\n'
    )
    shown = shop.run("messages", "show", "1", "--store", "orders")
    assert shown.out.splitlines()[-1] == "Page: https://ops.example/orders/messages/1"
    wrong = shop.run(
        "messages", "show", "1", "--store", "orders", PILLARBOX_DASHBOARD_URL="https://ann:hunter2@ops.example"
    )
    assert (wrong.code, "hunter2" in wrong.err, "write https://ops.example" in wrong.err) == (2, False, True)


def test_redriving_counts_first_and_moves_all_that_match(shop: Shop) -> None:
    shop.publish(4, to="billing")
    shop.fail("id <= 3", "HTTP 422")
    dry = shop.run("messages", "redrive", "--destination", "billing", "--dry-run", "-o", "json")
    assert (json.loads(dry.out)["matched"], json.loads(dry.out)["changed"]) == (3, 0)
    assert "3 messages (3 failed) would be redriven" in dry.err
    assert shop.number("pillarbox_history") == 3
    done = shop.run_json("messages", "redrive", "--destination", "billing", "--error", "422", "--yes")
    assert (done["matched"], done["changed"]) == (3, 3)
    assert shop.number("pillarbox_history") == 0
    assert {by for (by,) in shop.rows("select by from pillarbox_journal")} == {"ann"}


def test_many_messages_are_not_changed_unasked(shop: Shop) -> None:
    shop.publish(2, to="billing")
    ran = shop.run("messages", "discard", "--destination", "billing", "--reason", "x")
    assert ran.code == 2
    assert "add --yes" in ran.err
    assert shop.number("pillarbox_outbox") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("redrive",), "Say which messages to redrive"),
        (("redrive", "1", "--destination", "billing"), "ids or filters, not both"),
        (("redrive", "yesterday"), "neither the id nor the message id"),
        (("list", "--since", "someday"), "not a time"),
        (("list", "--after", str(2**63)), "is not in the range"),
        (("defer", "1", "--for", "someday"), "not a time"),
        (("discard", "1"), "--reason"),
        (("redrive", "--state", "skipped", "--yes"), "say with --to NAME where they go"),
        (("redrive", "--state", "delivered", "--yes"), "redrive takes what is failed or discarded"),
        (("replay", "--state", "failed", "--yes"), "replay takes what is delivered"),
        (("discard", "--state", "delivered", "--reason", "x", "--yes"), "discard takes what is"),
    ],
)
def test_wrong_usage_is_one_sentence_and_changes_nothing(shop: Shop, arguments: tuple[str, ...], expected: str) -> None:
    ran = shop.run("messages", *arguments)
    assert ran.code == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_what_cannot_be_done_says_why(shop: Shop) -> None:
    shop.publish(1, to="billing")
    ran = shop.run("messages", "replay", "1")
    assert (ran.code, "is pending and cannot be replayed" in ran.sentence) == (1, True)
    with shop.connect() as tx:
        tx.execute("update pillarbox_outbox set waits = 'parked'")
    behind = shop.run("messages", "defer", "1", "--for", "2h")
    assert (behind.code, "it waits behind an earlier message of its key" in behind.sentence) == (1, True)
    none = shop.run("messages", "defer", "--destination", "billing", "--for", "2h", "--yes")
    assert "Nothing was deferred: 1 message (1 pending) matched, which wait behind" in none.out
    assert shop.run("messages", "show", "99").code == 5
    assert shop.run("messages", "redrive", "99").code == 5


def test_replay_and_defer(shop: Shop) -> None:
    shop.publish(2, to="billing")
    shop.run_json("messages", "defer", "1", "--for", "2h")
    assert shop.number("pillarbox_outbox where id = 1 and available_at > created_at + 7000000000") == 1
    shop.fail("id = 2", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered'")
    assert shop.run_json("messages", "replay", "--since", "1h", "--yes")["changed"] == 1
    assert shop.number("pillarbox_outbox") == 2


def test_those_near_failure_and_those_stuck_are_listed(shop: Shop) -> None:
    shop.publish(3, to="billing")
    with shop.connect() as tx:
        tx.execute(
            "update pillarbox_outbox set attempts = 3, waits = 'retry', available_at = created_at, last_error = '503' "
            "where id = 2"
        )
    near = shop.run_json("messages", "list", "--near-failure")["messages"]
    assert [one["id"] for one in near] == [2]
    # Of a destination with more attempts it is not near: each goes by its own.
    (shop.folder / "pillarbox.toml").write_text('[destinations.billing]\nurl = "memory:"\nretry.attempts = 20\n')
    assert shop.run_json("messages", "list", "--near-failure")["messages"] == []
    (shop.folder / "pillarbox.toml").unlink()
    assert shop.run_json("messages", "list", "--stuck")["messages"] == []


def test_filters_redrive_what_failed_and_leave_what_a_person_closed(shop: Shop) -> None:
    shop.publish(4, to="billing")
    shop.fail("id <= 2", "HTTP 422")
    shop.run("messages", "discard", "3", "--reason", "never")
    dry = shop.run("messages", "redrive", "--destination", "billing", "--dry-run")
    assert dry.out == "2 messages (2 failed) would be redriven. Nothing was changed.\n"
    named = shop.run_json("messages", "redrive", "--destination", "billing", "--state", "failed", "--state",
                          "discarded", "--dry-run")  # fmt: skip
    assert named["matched_by_state"] == {"failed": 2, "discarded": 1}
    assert shop.run_json("messages", "redrive", "--destination", "billing", "--yes")["changed"] == 2
    assert shop.rows("select id from pillarbox_history where status = 'discarded'") == [(3,)]
    assert shop.run_json("messages", "redrive", "--state", "discarded", "--yes")["changed"] == 1


def test_the_question_shows_the_counts_by_state(shop: Shop) -> None:
    shop.publish(3, to="billing")
    shop.fail("id = 1", "HTTP 422")
    asked = on_a_terminal(shop, "messages", "discard", "--destination", "billing", "--reason", "moved", answer="n")
    assert "Discard 3 messages (2 pending, 1 failed) in sqlite:///shop.db? [y/N]" in asked
    assert "Nothing was changed." in asked
    assert (shop.number("pillarbox_outbox"), shop.number("pillarbox_history")) == (2, 1)


def test_a_long_change_shows_its_progress_on_a_terminal_alone(shop: Shop) -> None:
    shop.publish(2_001, to="billing")
    shown = on_a_terminal(shop, "messages", "discard", "--destination", "billing", "--reason", "x", "--yes")
    assert "1,000 of 2,001 done" in shown
    assert "2,000 of 2,001 done" in shown
    back = shop.run("messages", "redrive", "--state", "discarded", "--yes")
    assert (back.out, back.err) == ("2,001 messages redriven.\n", "")


def test_a_redrive_to_a_destination_that_nobody_knows_is_refused(shop: Shop) -> None:
    shop.publish(1, to="billing")
    shop.publish(1, to="mail")
    shop.fail("id = 1", "HTTP 422")
    ran = shop.run("messages", "redrive", "1", "--to", "biling")
    assert ran.code == 2
    assert ran.sentence == (
        "There is no destination biling: did you mean billing? The configuration and the tables know billing and mail."
    )
    assert shop.number("pillarbox_history") == 1
    (shop.folder / "pillarbox.toml").write_text('[destinations.spare]\nurl = "https://spare.example"\n')
    assert shop.run("messages", "redrive", "1", "--to", "spare").code == 0
    assert shop.rows("select destination from pillarbox_outbox where id = 1") == [("spare",)]


def on_a_terminal(shop: Shop, *arguments: str, answer: str = "") -> str:
    """Run a command with a terminal for questions and notes; return what it showed there."""
    screen, terminal = pty.openpty()
    variables = environment({"PILLARBOX_STORE": shop.url, "PILLARBOX_BY": "ann", "TERM": "xterm"})
    with subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        cwd=shop.folder,
        env=variables,
    ):
        os.close(terminal)
        os.write(screen, f"{answer}\n".encode())
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that nobody writes there any more
            while part := os.read(screen, 10_000):
                shown += part
    os.close(screen)
    return shown.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["messages", "redrive", "--yes"], ["messages", "replay", "--yes"], ["messages", "list"],
        ["messages", "discard", "--reason", "x", "--yes"], ["messages", "defer", "--for", "2h", "--yes"], ["failures"],
        ["lanes"], ["failures", "--attempts"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_destination_that_does_not_exist_is_refused_everywhere(shop: Shop, words: list[str]) -> None:
    shop.publish(1, to="billing")
    ran = shop.run(*words, "--destination", "biling")
    assert (ran.code, ran.out) == (2, "")
    assert ran.sentence.startswith("There is no destination biling: did you mean billing?")


def test_a_destination_whose_messages_are_all_delivered_is_known(shop: Shop) -> None:
    shop.publish(1, to="billing")
    shop.fail("1", "x")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered'")
    ran = shop.run("failures", "--destination", "billing")
    assert (ran.code, ran.err.strip()) == (0, "No failed message matches.")


def test_a_message_that_is_tried_again_is_due_and_says_when_it_is_tried(shop: Shop) -> None:
    shop.publish(2, to="billing")
    in_an_hour = "unixepoch() * 1000000 + 3600000000"
    with shop.connect() as tx:
        tx.execute(
            f"update pillarbox_outbox set waits = 'retry', available_at = {in_an_hour}, attempts = 1 where id = 1"
        )
        tx.execute(f"update pillarbox_outbox set waits = 'deferred', available_at = {in_an_hour} where id = 2")
    listed = shop.run("messages", "list", "--phase", "due").out
    assert "next try in" in listed
    assert "due in" not in listed
    assert "due in" in shop.run("messages", "list", "--phase", "later").out
