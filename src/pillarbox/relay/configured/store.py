"""`[store]`, as a URL that can be opened."""

from __future__ import annotations

from typing import Final

from pillarbox.config import Config, StoreSettings, store_section
from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.url_secrets import expanded
from pillarbox.stores.urls import StoreUrl, store_url

__all__ = ["configured_store"]

_OPTIONS: Final = ("keep", "pooler", "synchronous")


def configured_store(config: Config) -> tuple[StoreUrl, Names]:
    """Which store, and under which names its tables are."""
    settings = store_section(config).settings
    if settings.url is None:
        raise ConfigError(
            "No store is configured: give --store URL, set PILLARBOX_STORE, or write a url under [store] in the file."
        )
    url = expanded(settings.url.strip(), config.environ)
    whole = url + _query(settings, after="&" if "?" in url else "?")
    return store_url(whole, environ=config.environ), Names(settings.schema, settings.prefix)


def _query(settings: StoreSettings, *, after: str) -> str:
    """The options that stand beside the URL, as it has them. One that is in both is refused by the URL's reader."""
    pairs = [f"{name}={value}" for name in _OPTIONS if (value := getattr(settings, name)) is not None]
    return f"{after}{'&'.join(pairs)}" if pairs else ""
