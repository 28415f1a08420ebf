"""`pillarbox check`: alerts as an exit code and as lines for monitoring systems."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cli.program import pillarbox
from tests.support.cli.shop import Shop


def test_check_ends_as_urgently_as_it_is(shop: Shop) -> None:
    ran = shop.run("check")
    assert (ran.code, ran.out.splitlines()[0]) == (6, "WARNING: No relay is alive, so new messages would wait.")
    assert (shop.run("check", PILLARBOX_ALERTS_RELAYS="0").out) == "All is well.\n"
    shop.publish(1, to="billing")
    ran = shop.run("check", "-o", "json")
    assert (ran.code, json.loads(ran.out)["worst"]) == (7, "critical")
    ran = shop.run("check", "-o", "nagios")
    assert ran.code == 2
    assert ran.out.startswith("CRITICAL: No relay serves billing")
    assert ran.out.count("\n") == 1
    assert (
        'outbox_alert{name="unserved",severity="critical",destination="billing"} 1'
        in shop.run("check", "-o", "prometheus").out
    )


def test_thresholds_come_from_the_file(shop: Shop) -> None:
    shop.publish(2, to="billing")
    shop.fail("true", "HTTP 422")
    assert shop.run("check").code == 7
    (shop.folder / "pillarbox.toml").write_text("[alerts]\nfailed = 2\nrelays = 0\n")
    assert shop.run("check").code == 0
    (shop.folder / "pillarbox.toml").write_text('[alerts]\noldest_warning = "2h"\n')
    ran = shop.run("check")
    assert (ran.code, "below its warning" in ran.err) == (2, True)


def test_a_store_that_cannot_be_asked_is_unknown_to_nagios(shop: Shop) -> None:
    for store, said in (
        ("sqlite:///gone.db", "There is no SQLite file"),
        ("postgresql://nobody:secret@127.0.0.1:1/shop", "cannot be reached"),
        ("nonsense", "store"),
    ):
        ran = shop.run("check", "-o", "nagios", "--store", store)
        assert (ran.code, ran.out.count("\n")) == (3, 1)
        assert ran.out.startswith("UNKNOWN: ")
        assert said in ran.out
        assert "secret" not in ran.out
    assert shop.run("check", "--store", "sqlite:///gone.db").code not in (0, 3)


def test_a_name_with_a_bar_and_quotes_breaks_no_format(shop: Shop) -> None:
    name = 'mail|er "eu"'
    with shop.connect() as tx:
        values = (name, "/shop", "m1", "failed", 3, "Timeout")
        columns = "consumer, source, message_id, status, attempts, last_error"
        tx.execute(f"insert into pillarbox_inbox ({columns}) values (?, ?, ?, ?, ?, ?)", values)
    assert shop.run("check", "-o", "nagios").out.count("|") == 1
    (family,) = text_string_to_metric_families(shop.run("check", "-o", "prometheus").out)
    assert name in [sample.labels.get("consumer") for sample in family.samples]


@pytest.mark.parametrize("command", ["check", "status"])
def test_advice_about_one_of_several_stores_chooses_it(shop: Shop, command: str) -> None:
    shop.publish(1)
    shop.fail("1", "no account")
    (shop.folder / "pillarbox.toml").write_text(
        '[stores.eu]\nurl = "sqlite:///shop.db"\n[stores.us]\nurl = "sqlite:///other.db"\n'
    )
    chosen = pillarbox(command, "--store", "eu", cwd=shop.folder).out
    assert "`pillarbox failures --store eu --destination hooks`" in chosen
    assert "`pillarbox messages redrive --store eu --destination hooks`" in chosen
    by_url = pillarbox(command, "--store", "sqlite:///shop.db", cwd=shop.folder).out
    assert "`pillarbox failures --destination hooks`" in by_url
