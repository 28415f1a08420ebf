"""`pillarbox failures`: failed messages grouped by their error."""

from __future__ import annotations

from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal


def test_failures_are_grouped_by_what_they_have_in_common(shop: Shop) -> None:
    shop.publish(5, to="billing")
    shop.fail("id <= 3", "no account 123456 for 'ann'")
    shop.fail("id = 4", "no account 987654 for 'bob'")
    shop.fail("id = 5", "HTTP 422")
    found = shop.run_json("failures")["failures"]
    assert [(one["count"], one["fingerprint"]) for one in found] == [(4, "no account # for '…'"), (1, "HTTP 422")]
    assert [one["count"] for one in shop.run_json("failures", "--error", "http")["failures"]] == [1]


def test_the_latest_come_first_if_asked(shop: Shop) -> None:
    shop.publish(3, to="billing")
    shop.fail("id <= 2", "HTTP 500")
    shop.fail("id = 3", "HTTP 422")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status_at = status_at + 1000000 where id = 3")
    assert [one["error"] for one in shop.run_json("failures")["failures"]] == ["HTTP 500", "HTTP 422"]
    assert [one["error"] for one in shop.run_json("failures", "--newest")["failures"]] == ["HTTP 422", "HTTP 500"]


def test_attempts_are_found_of_messages_that_were_delivered_since(shop: Shop) -> None:
    line = "insert into pillarbox_journal (message_id, destination, action, at, by, error) values (?, ?, ?, 1, 'r', ?)"
    with shop.connect() as tx:
        tx.execute(line, ("m-1", "billing", "attempt_failed", "HTTP 503 after 12345 ms"))
        tx.execute(line, ("m-2", "billing", "attempt_failed", "HTTP 503 after 98765 ms"))
        tx.execute(line, ("m-3", "mail", "attempt_failed", "HTTP 429"))
        tx.execute(line, ("m-4", "billing", "redriven", None))
    (group,) = shop.run_json("failures", "--attempts", "--destination", "billing")["failures"]
    assert (group["count"], group["fingerprint"]) == (2, "HTTP 503 after # ms")
    assert len(shop.run_json("failures", "--attempts")["failures"]) == 2
    ran = shop.run("failures", "--attempts", "--topic", "orders")
    assert (ran.code, "--destination" in ran.err) == (2, True)


async def test_errors_are_whole_when_piped_and_begin_with_what_differs_on_a_terminal(shop: Shop) -> None:
    shop.publish(2, to="billing")
    start = "The destination billing refused the message because of a rule of its own that says: "
    shop.fail("id = 1", f"{start}no account {'x ' * 40}")
    shop.fail("id = 2", f"{start}too large")
    assert f"{start}no account {'x ' * 40}" in shop.run("failures").out
    _, seen = await run_on_terminal("failures", cwd=shop.folder, PILLARBOX_STORE=shop.url)
    assert "…too large" in seen
    assert "…no account x x x" in seen
    assert start not in seen


def test_what_no_route_takes_is_named_beside_the_failures(shop: Shop) -> None:
    shop.publish(2, to="billing")
    with shop.connect() as tx:
        tx.execute("update pillarbox_outbox set destination = '_skipped'")
    shop.fail("true", "no route matched")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'skipped'")
    ran = shop.run("failures")
    assert "No message has failed." in ran.err
    assert "2 skipped, because no route takes them: `pillarbox messages list --state skipped`." in ran.err


def test_a_page_of_causes_has_a_limit(shop: Shop) -> None:
    shop.publish(3, to="billing")
    for number, error in enumerate(("KeyError", "ValueError", "TypeError"), start=1):
        shop.fail(f"id = {number}", error)
    assert len(shop.run_json("failures", "--limit", "2")["failures"]) == 2
    ran = shop.run("failures", "--limit", "2")
    assert ("There may be more causes" in ran.err, "There may be more" in shop.run("failures").err) == (True, False)
    assert shop.run("failures", "--limit", "0").code == 2


async def test_notes_fit_the_terminal_too(shop: Shop) -> None:
    shop.publish(3, to="billing")
    shop.fail("id <= 3", "HTTP 422")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'skipped', destination = '_skipped' where id >= 2")
    _, seen = await run_on_terminal("failures", cwd=shop.folder, columns=80, PILLARBOX_STORE=shop.url)
    assert "2 skipped, because no route takes them:\n`pillarbox messages list --state skipped`." in seen
    assert [line for line in seen.splitlines() if len(line) > 80] == []
