"""`pillarbox pause` and `pillarbox resume`."""

from __future__ import annotations

import pytest

from tests.support.cli.shop import Shop


def test_pausing_and_resuming(shop: Shop) -> None:
    shop.publish(1, to="billing")
    assert shop.run_json("pause", "billing", "--reason", "moving")["paused"]
    assert "paused by ann" in shop.run("status").out
    assert shop.run_json("resume", "billing")["changed"]
    assert not shop.run_json("resume", "billing")["changed"]
    actions = shop.rows("select action, by, reason from pillarbox_journal order by id")
    assert [tuple(row) for row in actions] == [("paused", "ann", "moving"), ("resumed", "ann", None)]
    assert shop.run("pause", "no such;name").code == 2


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_destination_that_nobody_knows_is_refused_in_a_sentence_with_the_known_ones(shop: Shop, command: str) -> None:
    nothing = shop.run(command, "billing")
    assert (nothing.code, "none is configured" in nothing.sentence) == (2, True)
    shop.publish(1, to="billing")
    (shop.folder / "pillarbox.toml").write_text('[destinations.mail]\nurl = "https://mail.example"\n')
    ran = shop.run(command, "biling")
    assert ran.code == 2
    assert ran.sentence == (
        "There is no destination biling: did you mean billing? The configuration and the tables know billing and mail."
    )
    assert shop.number("pillarbox_destination") == shop.number("pillarbox_journal") == 0
    assert shop.run(command, "mail").code == shop.run(command, "billing").code == 0
