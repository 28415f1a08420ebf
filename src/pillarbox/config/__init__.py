"""Configuration: `pillarbox.toml`, then variables `PILLARBOX_*`, then flags; each wins over the one before.

`Config.load()` reads what was said; the sections know what it means. What belongs to a layer above this one (the
relay's settings) is read there, with `read_section`.
"""

from __future__ import annotations

from pillarbox.config.loading import Config
from pillarbox.config.origins import Given, Origin
from pillarbox.config.outbox import OutboxSettings, configured_routes, outbox_section
from pillarbox.config.sections import Section, read_section
from pillarbox.config.store import StoreSettings, store_section

__all__ = [
    "Config",
    "Given",
    "Origin",
    "OutboxSettings",
    "Section",
    "StoreSettings",
    "configured_routes",
    "outbox_section",
    "read_section",
    "store_section",
]
