"""`pillarbox relays` and `pillarbox lanes` where no relay is alive."""

from __future__ import annotations

from tests.support.cli.shop import Shop


def test_nobody_delivers(shop: Shop) -> None:
    ran = shop.run("relays")
    assert (ran.code, ran.out) == (0, "")
    assert "No relay is alive" in ran.err
    assert shop.run_json("lanes") == {"lanes": []}
