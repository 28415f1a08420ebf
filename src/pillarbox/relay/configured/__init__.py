"""A relay as the configuration has it: its settings, its destinations and their transports."""

from __future__ import annotations

from pillarbox.relay.configured.destinations import (
    ConfiguredDestination,
    configured_destinations,
    served_destinations,
)
from pillarbox.relay.configured.section import relay_section, served_names
from pillarbox.relay.configured.store import configured_store
from pillarbox.relay.configured.told import Told

__all__ = [
    "ConfiguredDestination",
    "Told",
    "configured_destinations",
    "configured_store",
    "relay_section",
    "served_destinations",
    "served_names",
]
