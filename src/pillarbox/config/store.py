"""`[store]`: where the tables are."""

from __future__ import annotations

from typing import Literal

import msgspec

from pillarbox.config.loading import Config
from pillarbox.config.sections import Section, read_section

__all__ = ["StoreSettings", "store_section"]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store's URL, the names of its tables, and options that could stand in the URL as well."""

    url: str | None = None
    schema: str | None = None
    prefix: str = "pillarbox_"
    keep: Literal["full", "no-payload", "off"] | None = None
    pooler: Literal["none", "transaction"] | None = None
    synchronous: Literal["full", "normal"] | None = None

    def __repr__(self) -> str:
        return f"StoreSettings(schema={self.schema!r}, prefix={self.prefix!r})"


def store_section(config: Config) -> Section[StoreSettings]:
    """What is said about the store."""
    return read_section(config, StoreSettings, at=("store",))
