"""The durations that may be `forever` or `0`: what the page says, what this table says, and what is accepted."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError
from pillarbox.operations.configuration import read_thresholds
from pillarbox.relay.configuration import read_destinations, read_relay_section
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.settings import list_fields
from tests.support.configs import load

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
KEPT = ("delivered", "failed", "skipped", "discarded", "inbox", "inbox_failed", "rollups", "journal")
FOREVER_TOO = {
    *(("relay", f"retention.{kind}") for kind in KEPT),
    ("destinations.NAME", "ping_interval"),
    ("destinations.NAME", "give_up_after"),
}
"""Written by hand. All other durations of these sections must end."""
ZERO_TOO = {
    *(("relay", f"retention.{kind}") for kind in KEPT),
    ("relay", "stale_after"),
    ("destinations.NAME", "retry.longest"),
    ("destinations.NAME", "retry.schedule"),
}
ALL = sorted(
    (section, ".".join(field.path))
    for section, cls in (("relay", RelaySettings), ("destinations.NAME", DestinationSettings))
    for field in list_fields(cls)
    if "timedelta" in str(field.type)
)


def read(folder: Path, section: str, key: str, text: str) -> object:
    """Return the value that a setting gets, as the whole program reads it."""
    url = 'url = "memory:"\n' if section.startswith("destinations") else ""
    config = load(folder, f'[{section}]\n{url}{key} = "{text}"\n')
    value: object = (
        read_relay_section(config).settings
        if section == "relay"
        else read_destinations(config)["NAME"].section.settings
    )
    for name in key.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("text", ["forever", "0"])
@pytest.mark.parametrize(("section", "key"), ALL)
def test_a_duration_takes_forever_and_zero_only_where_the_table_says(
    tmp_path: Path, section: str, key: str, text: str
) -> None:
    value, taken = (FOREVER, FOREVER_TOO) if text == "forever" else (timedelta(0), ZERO_TOO)
    if (section, key) in taken:
        assert read(tmp_path, section, key, text) in (value, (value,))
    else:
        with pytest.raises(ConfigError):
            read(tmp_path, section, key, text)


def test_the_page_names_exactly_these() -> None:
    assert set(ALL) >= FOREVER_TOO | ZERO_TOO
    documented: set[tuple[str, str]] = set()
    for heading, body in re.findall(r"^##+ `?\[?([\w.]+)\]?`?\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL):
        section = {"relay.retention": "relay", "relay": "relay", "destinations.NAME": "destinations.NAME"}.get(heading)
        for key, rest in re.findall(r"^\| `(\w+)` (\|.*)$", body, re.MULTILINE) if section else ():
            path = (section, f"retention.{key}" if heading == "relay.retention" else key)
            if path in ALL and ("forever" in rest or (heading == "relay.retention" and key in KEPT)):
                documented.add(path)
    assert documented == FOREVER_TOO
    assert "How long closed messages are kept: a duration, `forever`, or `0` to delete them at once." in PAGE


@pytest.mark.parametrize("key", ["oldest_critical", "backlog_for", "sending", "stuck", "unpruned", "latency"])
def test_an_alert_is_switched_off_by_forever(tmp_path: Path, key: str) -> None:
    assert getattr(read_thresholds(load(tmp_path, f'[alerts]\n{key} = "forever"\n')), key) == FOREVER
