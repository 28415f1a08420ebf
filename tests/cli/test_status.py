"""`pillarbox status`: what waits, who delivers, and how urgent it is."""

from __future__ import annotations

import json

from tests.support.cli.shop import Shop


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
    assert "No message was ever written here." in text
    assert "All is well." in text


def test_watching_goes_on_as_often_as_asked(shop: Shop) -> None:
    ran = shop.run("status", "--watch", "--count", "3", "--interval", "10ms", "-o", "json")
    assert ran.code == 0
    assert [json.loads(line)["destinations"] for line in ran.out.splitlines()] == [[], [], []]
