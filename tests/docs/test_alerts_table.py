"""The table of alerts names those that `check` raises, and what the Prometheus rules have of them."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pillarbox.operations import alerts
from pillarbox.operations.alerts import Alert, Thresholds
from pillarbox.operations.export import build_rules
from tests.support.docs.console_blocks import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")
RULES = {
    "OutboxFailed": "failed", "InboxFailed": "inbox_failed", "OutboxSkipped": "skipped", "OutboxOld": "oldest",
    "OutboxVeryOld": "oldest", "OutboxBacklog": "backlog", "OutboxLargeBacklog": "backlog", "OutboxStuck": "sending",
    "OutboxSlow": "latency", "OutboxRetries": "retry_rate", "OutboxUnserved": "unserved", "OutboxFreeLanes": "lanes",
    "OutboxNoRelay": "relays", "OutboxFewRelays": "relays", "OutboxBlocked": None,
}  # fmt: skip
"""Rule to the alert that it stands for."""


def test_the_table_has_every_alert() -> None:
    (table,) = re.findall(r"^\| alert \| warning \| critical \|\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    raised = set(re.findall(r'name="(\w+)"', inspect.getsource(alerts)))
    assert set(re.findall(r"^\| `(\w+)` ", table, re.MULTILINE)) == raised
    documented = inspect.getsource(Alert).partition("severity:")[0]
    assert set(re.findall(r"`(\w+)`", documented)) == raised


def test_the_page_says_which_alerts_have_no_rule() -> None:
    made: Any = build_rules(Thresholds(relays=2))
    names = {rule["alert"] for group in made["groups"] for rule in group["rules"]}
    without = set(re.findall(r'name="(\w+)"', inspect.getsource(alerts))) - {*RULES.values()}
    assert names == set(RULES)
    (shown,) = re.findall(r"but for (.*?), which no metric shows", PAGE)
    assert set(re.findall(r"`(\w+)`", shown)) == without
