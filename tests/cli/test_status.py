"""`pillarbox status`: what waits, who delivers, and how urgent it is."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal, split_pages


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


async def test_the_screen_fits_80_columns_and_has_a_colour_for_each_severity(shop: Shop) -> None:
    shop.publish(3, to="a-destination-with-a-very-long-name")
    shop.publish(2, to="billing")
    _, text = await run_on_terminal("status", cwd=shop.folder, columns=80, PILLARBOX_STORE=shop.url)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "CRITICAL: No relay serves a-destination-with-a-very-long-name" in text


async def test_destinations_and_alerts_have_the_colour_of_their_severity(shop: Shop) -> None:
    shop.publish(1, to="billing")
    here: dict[str, Any] = {"PILLARBOX_STORE": shop.url}
    _, seen = await run_on_terminal("status", cwd=shop.folder, keep_colours=True, **here, NO_COLOR="")
    red = [line for line in seen.splitlines() if line.startswith("\x1b[31m")]
    assert any("billing" in line and "1" in line for line in red)
    assert any(line.startswith("\x1b[31mCRITICAL: No relay serves billing") for line in red)
    _, plain = await run_on_terminal("status", cwd=shop.folder, keep_colours=True, **here)
    assert "\x1b[31m" not in plain


async def test_a_watched_screen_fits_its_terminal_and_leaves_the_one_before_as_it_was(shop: Shop) -> None:
    for number in range(30):
        shop.publish(1, to=f"d{number:02}")
    where: dict[str, Any] = {"PILLARBOX_STORE": shop.url}
    words = ("status", "--watch", "--interval", "10ms", "--count", "2")
    _, seen = await run_on_terminal(*words, cwd=shop.folder, columns=80, rows=24, **where)
    first, last = split_pages(seen)
    assert seen.startswith("\x1b[?1049h")
    assert seen.endswith(f"\x1b[?1049l{last}")
    for page in (first, last):
        lines = page.splitlines()
        assert (len(lines) <= 23, max(map(len, lines)) <= 80) == (True, True)
        assert any(line.startswith("destination") for line in lines[:4])
        assert any(line.startswith("+") and line.endswith("more destinations") for line in lines)
    _, wide = await run_on_terminal(*words, "--wide", cwd=shop.folder, columns=80, rows=24, **where)
    assert "d29" in split_pages(wide)[0]


def test_watching_goes_on_as_often_as_asked(shop: Shop) -> None:
    ran = shop.run("status", "--watch", "--count", "3", "--interval", "10ms", "-o", "json")
    assert ran.code == 0
    assert [json.loads(line)["destinations"] for line in ran.out.splitlines()] == [[], [], []]
