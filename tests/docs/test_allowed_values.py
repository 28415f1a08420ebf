"""Which values settings take and which they refuse: written by hand, because a default says nothing about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox.config import Config, read_outbox_section
from pillarbox.errors import ConfigError
from pillarbox.operations.configuration import read_thresholds
from pillarbox.relay.addresses import check_store_name
from pillarbox.relay.configuration import (
    read_destinations,
    read_process_section,
    read_relay_section,
    read_sharing_section,
)
from tests.support.configs import load

CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"
READERS: dict[str, Callable[[Config], Any]] = {
    "relay": lambda config: (read_relay_section(config), read_process_section(config), read_sharing_section(config)),
    "destinations.NAME": read_destinations,
    "outbox": read_outbox_section,
    "alerts": read_thresholds,
}
ALLOWED: dict[tuple[str, str], tuple[list[str], list[str]]] = {
    ("outbox", "unrouted"): (['"skip"', '"error"'], ['"drop"', '""']),
    ("outbox", "max_payload"): (["1"], ["1.5", '"much"']),
    ("outbox", "serialize_keys"): (["true", "false"], ["1", '"maybe"']),
    ("relay", "processes"): (["1", "64"], ["0", "65", "-1"]),
    ("relay", "duties"): (['["recover"]', '["retry", "send"]'], ['["send"]', "[]", '["send", "send", "retry"]']),
    ("relay", "lone_cap"): (["1"], ["1.5", '"x"']),
    ("relay", "max_lanes"): (["1"], ["0", "-1"]),
    ("relay", "total_window"): (["1"], ["0"]),
    ("relay", "total_window_bytes"): (["1"], ["0"]),
    ("relay", "store_connections"): (["3"], ["2", "0"]),
    ("relay", "store_threads"): (["1"], ["0"]),
    ("relay", "retention.batch"): (["1"], ["0", "-1"]),
    ("destinations.NAME", "batch"): (["1"], ["0", "-5", "1.5"]),
    ("destinations.NAME", "window"): (["1"], ["0"]),
    ("destinations.NAME", "window_bytes"): (["1"], ["0"]),
    ("destinations.NAME", "after_failure"): (['"continue"', '"hold"'], ['"stop"']),
    ("destinations.NAME", "missing_topology"): (['"wait"', '"reject"'], ['"fail"']),
    ("destinations.NAME", "rate"): (["0.5"], ["0", "-1"]),
    ("destinations.NAME", "retry.attempts"): (["1", '"forever"'], ["0", "-1"]),
    ("destinations.NAME", "retry.jitter"): (["0", "0.9"], ["-0.1", "1"]),
    ("alerts", "retry_rate"): (["0", "1"], ['"often"']),
    ("alerts", "relays"): (["0"], ["-1"]),
}


def read(folder: Path, section: str, key: str, value: str) -> None:
    url = 'url = "memory:"\n' if section.startswith("destinations") else ""
    READERS[section](load(folder, f"[{section}]\n{url}{key} = {value}\n"))


@pytest.mark.parametrize(
    ("section", "key", "value"), [(*name, one) for name, (taken, _) in ALLOWED.items() for one in taken]
)
def test_a_value_is_taken(tmp_path: Path, section: str, key: str, value: str) -> None:
    read(tmp_path, section, key, value)


@pytest.mark.parametrize(
    ("section", "key", "value"), [(*name, one) for name, (_, refused) in ALLOWED.items() for one in refused]
)
def test_a_value_is_refused(tmp_path: Path, section: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, section, key, value)


@pytest.mark.parametrize("name", ["a", "2026", "_x", "a.b-c", "a" * 63, "a" * 64, "-a", ".a", "a b", ""])
def test_names_of_stores_are_as_the_page_says(name: str) -> None:
    said = "A NAME is 1 to 63 letters, digits, `_`, `.` and `-`, and begins with a letter, a digit or `_`."
    assert said in CONFIGURATION.read_text("utf-8")
    if name in ("a", "2026", "_x", "a.b-c", "a" * 63):
        assert check_store_name(name) == name
    else:
        with pytest.raises(ConfigError):
            check_store_name(name)
