"""`pillarbox check`: alerts as an exit code and as lines for monitoring systems."""

from __future__ import annotations

import json

from tests.support.cli.shop import Shop


def test_check_ends_as_urgently_as_it_is(shop: Shop) -> None:
    assert shop.run("check").code == 0
    assert shop.run("check").out == "All is well.\n"
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
    (shop.folder / "pillarbox.toml").write_text("[alerts]\nfailed = 2\n")
    assert shop.run("check").code == 0
    (shop.folder / "pillarbox.toml").write_text('[alerts]\noldest_warning = "2h"\n')
    ran = shop.run("check")
    assert (ran.code, "below its warning" in ran.err) == (2, True)
