"""`pillarbox archive restore`: counts first, asks, restores what was purged, and names the lines that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli.shop import Shop


@pytest.fixture
def folder(shop: Shop, tmp_path: Path) -> Path:
    """An archive with two delivered messages of billing and one failed of mail, which were purged."""
    shop.publish(2, to="billing")
    shop.publish(1, to="mail")
    shop.fail("true", "HTTP 400")
    with shop.connect() as tx:
        tx.execute("update pillarbox_history set status = 'delivered', status_at = 0 where destination = 'billing'")
        tx.execute("update pillarbox_history set status = 'discarded', status_at = 0 where destination = 'mail'")
    shop.run_json("purge", "--yes", "--archive", str(tmp_path / "archive"))
    assert shop.number("pillarbox_history") == 0
    return tmp_path / "archive"


def test_what_was_purged_comes_back_and_is_sent_again(shop: Shop, folder: Path) -> None:
    dry = shop.run_json("archive", "restore", str(folder), "--dry-run")
    assert (dry["matched_by_state"], dry["missing"], dry["changed"]) == ({"delivered": 2, "discarded": 1}, 3, 0)
    refused = shop.run("archive", "restore", str(folder))
    assert (refused.code, "add --yes" in refused.err, shop.number("pillarbox_history")) == (2, True, 0)
    done = shop.run_json("archive", "restore", str(folder), "--destination", "billing", "--yes")
    assert (done["matched"], done["changed"], done["known"], done["problems"]) == (2, 2, 0, [])
    again = shop.run("archive", "restore", str(folder), "--yes")
    assert again.out == "1 message restored. 2 were there already.\n"
    rows = shop.rows("select id, message_id, status from pillarbox_history order by destination")
    assert [row[2] for row in rows] == ["delivered", "delivered", "discarded"]
    shown = shop.run_json("messages", "show", rows[0][1], "--payload")
    assert (shown["messages"][0]["state"], shown["messages"][0]["payload"]) == ("delivered", {"n": 0})
    assert [(line["action"], line["by"]) for line in shown["journal"]] == [("restored", "ann")]
    assert shop.run_json("purge", "--yes")["removed"] == {}, "its retention begins anew"
    assert shop.run_json("messages", "replay", "--destination", "billing", "--yes")["changed"] == 2
    notes = shop.rows("select by, detail from pillarbox_journal where action = 'restored' and destination = '*'")
    assert [tuple(note) for note in notes] == [("ann", "2 messages of 2 files"), ("ann", "1 message of 2 files")]


def test_filters_choose_what_comes_back(shop: Shop, folder: Path) -> None:
    for options, count in (
        (["--state", "discarded"], 1),
        (["--until", "1h"], 0),
        (["--since", "1h", "--destination", "mail"], 1),
        (["--message-id", "01910000-0000-7000-8000-000000000000"], 0),
    ):
        assert shop.run_json("archive", "restore", str(folder), *options, "--dry-run")["missing"] == count
    assert shop.run("archive", "restore", str(folder), "--message-id", "4711").code == 2
    assert shop.run("archive", "restore", str(folder / "missing")).code == 2


def test_bad_lines_are_named_and_the_rest_is_restored(shop: Shop, folder: Path) -> None:
    bad = folder / "bad.jsonl"
    bad.write_text("x\n" * 25)
    ran = shop.run("archive", "restore", str(folder), "--yes", "-o", "json")
    document = json.loads(ran.out)
    assert (ran.code, document["changed"], document["problem_count"]) == (1, 3, 25)
    assert document["problems"][1] == {"file": str(bad), "line": 2, "reason": "it is no message (no JSON)"}
    assert f"{bad}:20: it is no message" in ran.err
    assert ran.err.rstrip().endswith("… and 5 more.")
    assert shop.run("archive", "restore", str(bad), "--yes").code == 1
