"""`pillarbox failures`: failed messages grouped by their error."""

from __future__ import annotations

from tests.support.cli.shop import Shop


def test_failures_are_grouped_by_what_they_have_in_common(shop: Shop) -> None:
    shop.publish(5, to="billing")
    shop.fail("id <= 3", "no account 123456 for 'ann'")
    shop.fail("id = 4", "no account 987654 for 'bob'")
    shop.fail("id = 5", "HTTP 422")
    found = shop.run_json("failures")["failures"]
    assert [(one["count"], one["error"]) for one in found] == [(4, "no account … for …"), (1, "HTTP 422")]
    assert [one["count"] for one in shop.run_json("failures", "--error", "http")["failures"]] == [1]
