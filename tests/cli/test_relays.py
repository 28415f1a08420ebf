"""`pillarbox relays` and `pillarbox lanes`."""

from __future__ import annotations

import json
import time

import pytest

from pillarbox.message import MAX_LABELS
from tests.support.cli.shop import Shop


def test_nobody_delivers(shop: Shop) -> None:
    ran = shop.run("relays")
    assert (ran.code, ran.out) == (0, "")
    assert "No relay is alive" in ran.err
    assert shop.run_json("lanes") == {"lanes": []}


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ({"zone": "eu", "team": "shop"}, {"team": "shop", "zone": "eu"}),
        ({"zone": "eu", "bad name": "x", "n": 1, "long": "x" * 256, "line": "a\nb", "e": ""}, {"zone": "eu"}),
        ({f"n{number:03}": "x" for number in range(500)}, {f"n{number:03}": "x" for number in range(MAX_LABELS)}),
        ({"zone": "eu", "big": "x" * 100_000}, {}),
        ("not an object", {}),
        (None, {}),
    ],
    ids=["good", "some bad", "many", "big", "text", "none"],
)
def test_labels_are_shown_as_far_as_a_relay_could_have_written_them(shop: Shop, labels: object, shown: object) -> None:
    with shop.connect() as tx:
        tx.execute(
            "insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, started_at,"
            " expires_at, lease, labels) values ('0192f0c0-0000-7000-8000-000000000001', 's', 'h', 1, 'v', '[]', '[]',"
            " 1, ?1, ?2, ?3)",
            (int((time.time() + 1_800) * 1_000_000), 3_600_000_000, None if labels is None else json.dumps(labels)),
        )
    (relay,) = shop.run_json("relays")["relays"]
    assert relay["labels"] == shown
    assert shop.run_json("status")["relays"][0]["labels"] == shown
    text = shop.run("relays").out
    assert ("labels" in text) == bool(shown)
    if relay["labels"] == {"team": "shop", "zone": "eu"}:
        assert "team=shop zone=eu" in text
