"""The traceback of a handler: its last line of code in the log, and the whole of it where the message is shown."""

from __future__ import annotations

import asyncio
import re

from tests.support.cli.relay_process import start_relay
from tests.support.cli.shop import Shop

BILLING = """
from pillarbox.brokers.handlers import Handlers

handlers = Handlers()


@handlers.on("orders.placed")
def bill(order):
    return price(order)


def price(order):
    password = "token=c4nary-p4ssw0rd"
    raise KeyError(f"total {password}")
"""
CONFIG = """
[destinations.billing]
url = "handlers:billing:handlers"
retry.attempts = 2
retry.first = "10ms"
"""


async def test_the_log_names_the_line_and_show_prints_the_whole_traceback(shop: Shop) -> None:
    (shop.folder / "billing.py").write_text(BILLING)
    (shop.folder / "pillarbox.toml").write_text(CONFIG)
    shop.publish(1, to="billing")
    async with start_relay(shop) as relay:
        retried = await relay.wait_for_line("will retry")
        failed = await relay.wait_for_line("failed ")
        async with asyncio.timeout(60):
            while not shop.number("pillarbox_history"):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
    for line in (retried, failed):
        assert re.search(r"KeyError.* \(at \S*billing\.py, line 14, in price\)", line), line
        assert "c4nary" not in line

    shown = shop.run("messages", "show", "1").out
    assert shown.count("Traceback (most recent call last):") == 1
    assert "In full, attempt at" in shown
    assert re.search(r'^ {8}File ".*billing\.py", line 14, in price$', shown, re.MULTILINE)
    assert "c4nary" not in shown
    whole = shop.run("messages", "show", "1", "--wide").out
    assert whole.count("Traceback (most recent call last):") == 2


def test_the_answers_of_another_destination_are_not_shown_as_those_of_the_message(shop: Shop) -> None:
    """An event for two destinations is two messages of one message id, and of one journal."""
    shop.publish(1, to="billing")
    with shop.connect() as tx:
        tx.executemany(
            "insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)"
            " select message_id, ?, 'attempt_failed', created_at, 'r', 1, 'it raised', ? from pillarbox_outbox",
            [("mail", "an earlier trace"), ("billing", "its own trace"), ("mail", "a later trace")],
        )
    shown = shop.run("messages", "show", "1").out
    assert [line.split()[4:6] for line in shown.splitlines() if "attempt failed" in line] == [
        ["failed", "mail"],
        ["failed", "billing"],
        ["failed", "mail"],
    ]
    assert "In full, attempt to billing at" in shown
    assert ("its own trace" in shown, "a later trace" in shown) == (True, False)
    assert "a later trace" in shop.run("messages", "show", "1", "--wide").out

    with shop.connect() as tx:
        tx.execute("delete from pillarbox_journal where destination = 'billing'")
    assert "In full, attempt at" in shop.run("messages", "show", "1").out, "it was sent on from there"


def test_a_broker_s_long_answer_cannot_pass_for_a_field(shop: Shop) -> None:
    shop.publish(1, to="billing")
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)"
            " select message_id, 'billing', 'failed', created_at, 'r', 1, 'HTTP 500', ? from pillarbox_outbox",
            ("first\nstate   delivered\x1b[2J\npassword=c4nary",),
        )
    shown = shop.run("messages", "show", "1").out
    assert "\n      state   delivered" in shown
    assert "\nstate   delivered" not in shown
    assert "c4nary" not in shown
    assert "\x1b" not in shown
