"""`pillarbox status`: what waits, who delivers, and how urgent it is."""

from __future__ import annotations

import json

from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal


def test_status_says_what_waits_and_who_delivers(shop: Shop) -> None:
    shop.publish(3, to="billing")
    status = shop.run_json("status")
    (billing,) = status["destinations"]
    assert (billing["name"], billing["due"], billing["relays"]) == ("billing", 3, 0)
    assert [alert["name"] for alert in status["alerts"]] == ["unserved"]
    text = shop.run("status").out
    assert "billing" in text
    assert "No relay is alive." in text
    assert "CRITICAL: No relay serves billing, and 3 messages wait." in text


def test_status_of_nothing(shop: Shop) -> None:
    text = shop.run("status").out
    assert "No message waits or has failed, and none was delivered lately." in text
    assert "WARNING: No relay is alive, so new messages would wait." in text
    assert "All is well." not in text


def test_the_screen_fits_80_columns_and_has_a_colour_for_each_severity(shop: Shop) -> None:
    shop.publish(3, to="a-destination-with-a-very-long-name")
    shop.publish(2, to="billing")
    text = shop.run("status", COLUMNS="80").out
    table, _, alerts = text.partition("No relay is alive.")
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "\x1b" not in text
    assert "CRITICAL: No relay serves a-destination-with-a-very-long-name" in alerts


async def test_destinations_and_alerts_have_the_colour_of_their_severity(shop: Shop) -> None:
    shop.publish(1, to="billing")
    here = {"PILLARBOX_STORE": shop.url}
    _, seen = await run_on_terminal("status", cwd=shop.folder, keep_colours=True, **here, NO_COLOR="")
    red = [line for line in seen.splitlines() if line.startswith("\x1b[31m")]
    assert any("billing" in line and "1" in line for line in red)
    assert any(line.startswith("\x1b[31mCRITICAL: No relay serves billing") for line in red)
    _, plain = await run_on_terminal("status", cwd=shop.folder, keep_colours=True, **here)
    assert "\x1b[31m" not in plain


def test_watching_goes_on_as_often_as_asked(shop: Shop) -> None:
    ran = shop.run("status", "--watch", "--count", "3", "--interval", "10ms", "-o", "json")
    assert ran.code == 0
    assert [json.loads(line)["destinations"] for line in ran.out.splitlines()] == [[], [], []]
