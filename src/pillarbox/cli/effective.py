"""Every value of the configuration that is in force, fit to be shown."""

from __future__ import annotations

from typing import Any

import msgspec

from pillarbox.alerts import Thresholds
from pillarbox.cli.logs import LogSettings
from pillarbox.config import Config, Section, outbox_section, read_section, store_section
from pillarbox.config.fields import fields_of
from pillarbox.config.origins import DEFAULT, Origin, Path
from pillarbox.config.values import plain
from pillarbox.relay.configured import ConfiguredDestination, configured_destinations, relay_section, served_names
from pillarbox.stores.url_secrets import redacted

__all__ = ["Entry", "effective"]


class Entry(msgspec.Struct, frozen=True):
    """One value, as the file would have it and without secrets, and who said it."""

    path: Path
    value: object
    origin: Origin

    @property
    def told_by(self) -> str:
        return f"{self.origin.kind} {self.origin.where}".rstrip()


def effective(config: Config) -> list[Entry]:
    """All of it, section by section. `ConfigError` where something is wrong."""
    served = served_names(config)
    destinations = configured_destinations(config)
    return [
        *map(_without_login, _entries(store_section(config), at=("store",))),
        *_entries(outbox_section(config), at=("outbox",)),
        *_entries(relay_section(config), at=("relay",)),
        Entry(("relay", "destinations"), list(served.names or destinations), served.origin),
        *_entries(read_section(config, LogSettings, at=("log",)), at=("log",)),
        *_entries(read_section(config, Thresholds, at=("alerts",)), at=("alerts",)),
        *(entry for one in destinations.values() for entry in _destination(one)),
    ]


def _entries(section: Section[Any], *, at: Path) -> list[Entry]:
    return [
        Entry((*at, *field.path), plain(section.value(field.path)), section.origin(field.path))
        for field in fields_of(type(section.settings))
    ]


def _without_login(entry: Entry) -> Entry:
    is_url = entry.path == ("store", "url") and isinstance(entry.value, str)
    return Entry(entry.path, redacted(str(entry.value)), entry.origin) if is_url else entry


def _destination(one: ConfiguredDestination) -> list[Entry]:
    at = ("destinations", one.name)
    url = Entry((*at, "url"), one.told.shown_url(), one.told.url.origin if one.told.url else DEFAULT)
    idle = {"name", *(("first", "longest") if one.section.settings.retry.schedule else ())}
    own = [_endless(entry) for entry in _entries(one.section, at=at) if entry.path[-1] not in idle]
    options = [Entry((*at, *path), value, one.told.options[path].origin) for path, value in one.told.shown_options()]
    return [url, *own, *options]


def _endless(entry: Entry) -> Entry:
    """Attempts that nobody counts have a word of their own."""
    is_endless = entry.path[-2:] == ("retry", "attempts") and entry.value is None
    return Entry(entry.path, "forever", entry.origin) if is_endless else entry
