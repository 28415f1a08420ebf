"""Configuration that operators see: every value in force with its origin, and the thresholds of alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pillarbox.config import (
    Config,
    Section,
    find_receiver_url,
    list_consumers,
    read_outbox_section,
    read_section,
    read_store_section,
)
from pillarbox.contracts.store import MonitorStore
from pillarbox.errors import ConfigError
from pillarbox.operations.alerts import Thresholds
from pillarbox.operations.health import ProbeSettings
from pillarbox.operations.monitor import Monitor, NearFailure
from pillarbox.redaction import is_reference, redact, redact_url
from pillarbox.relay.addresses import TenantSettings, list_store_entries
from pillarbox.relay.configuration import (
    ConfiguredDestination,
    list_handed_off,
    read_destinations,
    read_process_section,
    read_relay_section,
    read_served_names,
    read_sharing_section,
)
from pillarbox.settings import DEFAULT_ORIGIN, ConfigOrigin, KeyPath, list_fields, to_plain

__all__ = [
    "ConfigEntry",
    "build_monitor",
    "list_destination_entries",
    "list_entries",
    "read_handed_off",
    "read_near_failure",
    "read_thresholds",
]


def read_thresholds(config: Config) -> Thresholds:
    """Read `[alerts]`."""
    return read_section(config, Thresholds, at=("alerts",)).settings


def read_near_failure(config: Config) -> NearFailure:
    """Read after how many attempts a message is near failure: a share of those that its destination has."""
    try:
        destinations = read_destinations(config)
    except ConfigError:  # none is configured here, or not wholly: the monitor needs no transport
        destinations = {}
    attempts = {name: one.section.settings.retry.attempts for name, one in destinations.items()}
    return NearFailure(share=read_thresholds(config).near_failure, attempts=attempts)


def build_monitor(store: MonitorStore, config: Config) -> Monitor:
    """Build a monitor with the configured thresholds."""
    return Monitor(
        store,
        # With another lease than the relays have, dead ones would count as alive.
        lease=read_relay_section(config).settings.lease,
        stuck_after=read_thresholds(config).listed_after,
        near_failure=read_near_failure(config),
        handed_off=read_handed_off(config),
    )


def read_handed_off(config: Config) -> dict[str, str]:
    """Read which destinations another engine delivers, and which engine."""
    try:
        return {one.name: one.handoff for one in list_handed_off(config) if one.handoff is not None}
    except ConfigError:  # none is configured here, or not wholly: the monitor needs no transport
        return {}


class ConfigEntry(msgspec.Struct, frozen=True):
    """One value, as the file would hold it and without secrets, and its origin."""

    path: KeyPath
    value: object
    origin: ConfigOrigin

    @property
    def origin_text(self) -> str:
        return f"{self.origin.kind} {self.origin.where}".rstrip()


def list_entries(config: Config, *, more: Sequence[tuple[KeyPath, type[msgspec.Struct]]] = ()) -> list[ConfigEntry]:
    """List every value in force, section by section. `ConfigError` where something is wrong.

    `more` are sections of higher layers, each with its settings class.
    """
    served = read_served_names(config)
    destinations = read_destinations(config)
    return [
        *map(_hide_login, _list_section(read_store_section(config), at=("store",))),
        *(
            _hide_login(entry)
            for name, section in list_store_entries(config).items()
            for entry in _list_section(section, at=("stores", name))
        ),
        *map(_hide_login, _list_section(read_section(config, TenantSettings, at=("tenants",)), at=("tenants",))),
        *_list_section(read_outbox_section(config), at=("outbox",)),
        *_list_section(read_relay_section(config), at=("relay",)),
        *_list_section(read_process_section(config), at=("relay",)),
        *_list_section(read_sharing_section(config), at=("relay",)),
        ConfigEntry(("relay", "destinations"), list(served.names or destinations), served.origin),
        *(entry for at, cls in more for entry in _list_section(read_section(config, cls, at=at), at=at)),
        *_list_section(read_section(config, Thresholds, at=("alerts",)), at=("alerts",)),
        *_list_section(read_section(config, ProbeSettings, at=("probes",)), at=("probes",)),
        *(entry for one in destinations.values() for entry in list_destination_entries(one)),
        *(_show_receiver(config, name) for name in list_consumers(config)),
    ]


def _list_section(section: Section[Any], *, at: KeyPath) -> list[ConfigEntry]:
    return [
        ConfigEntry((*at, *field.path), _hide_secrets(to_plain(section.value(field.path))), section.origin(field.path))
        for field in list_fields(type(section.settings))
    ]


def _hide_secrets(value: object) -> object:
    """Hide what looks like a secret in a value, whatever its key is: any text may hold a URL with a login."""
    match value:
        case str():
            return value if is_reference(value) else redact(value)
        case Mapping():
            return {name: _hide_named(str(name), inner) for name, inner in value.items()}
        case list() | tuple():
            return [_hide_secrets(part) for part in value]
    return value


def _hide_named(name: str, value: object) -> object:
    if isinstance(value, str) and not is_reference(value) and redact(f"{name}={value}") != f"{name}={value}":
        return "***"
    return _hide_secrets(value)


_URL_SECTIONS: Final = ("store", "stores", "tenants")
_URL_KEYS: Final = ("url", "store", "directory")


def _hide_login(entry: ConfigEntry) -> ConfigEntry:
    is_url = entry.path[0] in _URL_SECTIONS and entry.path[-1] in _URL_KEYS and isinstance(entry.value, str)
    return ConfigEntry(entry.path, redact_url(str(entry.value)), entry.origin) if is_url else entry


def list_destination_entries(one: ConfiguredDestination) -> list[ConfigEntry]:
    """List every value in force of one destination."""
    at = ("destinations", one.name)
    url = ConfigEntry(
        (*at, "url"),
        one.transport_options.redact_url(),
        one.transport_options.url.origin if one.transport_options.url else DEFAULT_ORIGIN,
    )
    # With a schedule the settings of doubling delays have no effect.
    unused = {"name", *(("first", "longest") if one.section.settings.retry.schedule else ())}
    own = [_name_endless(entry) for entry in _list_section(one.section, at=at) if entry.path[-1] not in unused]
    options = [
        ConfigEntry((*at, *path), value, one.transport_options.options[path].origin)
        for path, value in one.transport_options.redact_options()
    ]
    return [url, *own, *options]


def _show_receiver(config: Config, name: str) -> ConfigEntry:
    url = find_receiver_url(config, name)
    return ConfigEntry(("consumers", name, "receiver"), redact_url(str(url.value)), url.origin)


def _name_endless(entry: ConfigEntry) -> ConfigEntry:
    """Write an unlimited number of attempts as the file does."""
    is_endless = entry.path[-2:] == ("retry", "attempts") and entry.value is None
    return ConfigEntry(entry.path, "forever", entry.origin) if is_endless else entry
