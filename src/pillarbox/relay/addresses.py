"""Addresses of stores: the one of `[store]`, those of `[stores.NAME]`, and those of tenants that a query names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.config import (
    Config,
    Section,
    StoreSettings,
    build_section,
    check_key,
    read_section,
    read_store_section,
)
from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.redaction import escape_controls, expand_variables
from pillarbox.settings import list_fields, suggest_nearest
from pillarbox.stores.directory import query_column
from pillarbox.stores.urls import StoreUrl, choose_names, parse_store_url

__all__ = [
    "MAIN",
    "Found",
    "StoreAddress",
    "Stores",
    "TenantSettings",
    "Tenants",
    "check_store_name",
    "list_store_entries",
    "parse_address",
    "read_store",
    "read_stores",
    "split_store_choice",
]

MAIN: Final = "main"
"""Name of the store of `[store]`, and of one that was given without a name."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
"""A store's name, here and in the dashboard. Every tenant's name is one."""
_NAMED: Final = re.compile(rf"(?P<name>{_NAME.pattern})=(?P<url>[A-Za-z$].*)", re.DOTALL)
_TENANT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
"""A tenant's name goes into URLs, file names and identifiers, so it has nothing that means something there."""
_PLACE: Final = "{tenant}"
_FIELDS: Final = list_fields(StoreSettings)
_PATHS: Final = [field.path for field in _FIELDS]
_STORE_OPTIONS: Final = ("keep", "pooler", "dialect", "synchronous")
_LONGEST_SHOWN: Final = 60


class StoreAddress(msgspec.Struct, frozen=True):
    """Where a store is, and what its tables are called. Its text holds no secret."""

    url: StoreUrl
    names: Names

    def __str__(self) -> str:
        return str(self.url)


def parse_address(url: str, names: Names | None = None) -> StoreAddress:
    """Read the URL of a store; `ConfigError` if it is unusable."""
    parsed = parse_store_url(url)
    return StoreAddress(parsed, choose_names(parsed, names))


def split_store_choice(text: str) -> tuple[str, str] | None:
    """Split `NAME=URL`; None for a text that is a URL alone."""
    found = _NAMED.fullmatch(text)
    return None if found is None else (found["name"], found["url"])


def check_store_name(name: str) -> str:
    """Return a store's name, or raise `ConfigError`. It ends up in logs, metric labels and addresses of pages."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{_show(name)} is not a name for a store: write 1 to 63 letters, digits, '_', '.' and '-', beginning with "
            "a letter, a digit or '_'."
        )
    return name


def _show(name: str) -> str:
    text = escape_controls(name)
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


# --- [tenants] ---


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[tenants]`: a store for each name that a query returns."""

    store: str | None = None
    """URL of a tenant's store, with `{tenant}` in place of its name."""
    query: str | None = None
    """Returns the names in its first column."""
    directory: str | None = None
    """URL of the database that the query is for. None: that of `store`, without its schema."""
    refresh: timedelta = timedelta(seconds=30)
    """Time between two queries: tenants come and go."""
    schema: str | None = None
    prefix: str = "pillarbox_"

    def __repr__(self) -> str:
        return f"TenantSettings(refresh={self.refresh!r})"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.refresh <= timedelta(0):
            raise ConfigError("The refresh of tenants must be longer than nothing.")


class Found(msgspec.Struct, frozen=True):
    """Result of one query for tenants."""

    stores: Mapping[str, StoreAddress]
    refused: Sequence[str] = ()
    """A sentence for each row that is no tenant. The others are not affected."""


class Tenants:
    """The tenants that a query names, each with the address of its store.

    Rows are foreign data: each is checked by itself, and one that cannot be a tenant's name is refused alone.
    """

    def __init__(self, settings: TenantSettings, *, environ: Mapping[str, str]) -> None:
        if settings.store is None or settings.query is None:
            missing = "store" if settings.store is None else "query"
            raise ConfigError(f'Tenants need a {missing}: write [tenants] with store = "…{_PLACE}…" and query.')
        if _PLACE not in settings.store and _PLACE not in (settings.schema or ""):
            raise ConfigError(f"The store of tenants needs {_PLACE} in its URL, where a tenant's name goes.")
        self._template = expand_variables(settings.store.strip(), environ, where="The key tenants.store")
        self._schema = settings.schema
        self._prefix = settings.prefix
        self._query = settings.query
        self.refresh: Final = settings.refresh
        self._directory = _find_directory(self._template, settings.directory, environ)
        self.get_address("tenant")  # a wrong template is found now, and not at the first tenant

    def get_address(self, tenant: str) -> StoreAddress:
        """Return the address of a tenant's store; `ConfigError` unless that is a name for one."""
        if not _TENANT.fullmatch(tenant):
            raise ConfigError(
                f"{_show(tenant)} is no name of a tenant: it must be 1 to 63 letters, digits, '_' and '-', "
                "not starting with '-'."
            )
        schema = None if self._schema is None else self._schema.replace(_PLACE, tenant)
        return parse_address(self._template.replace(_PLACE, tenant), Names(schema, self._prefix))

    async def find(self, *, taken: Iterable[str] = ()) -> Found:
        """Ask who the tenants are. Names in `taken` are other stores'. Raises `StoreError` if nobody answers."""
        rows = await query_column(self._directory, self._query)
        stores: dict[str, StoreAddress] = {}
        refused: list[str] = []
        others = set(taken)
        for row in rows:
            try:
                if not isinstance(row, str):
                    raise ConfigError(f"{_show(str(row))} is no name of a tenant: it is not a text.")
                if row in others:
                    raise ConfigError(f"The tenant {row} has the name of another store; rename one of them.")
                stores[row] = self.get_address(row)
            except ConfigError as error:
                refused.append(str(error))
        return Found(stores, refused)


def _find_directory(template: str, directory: str | None, environ: Mapping[str, str]) -> StoreUrl:
    if directory is not None:
        return parse_store_url(directory, environ=environ)
    address, _, query = template.partition("?")
    pairs = [pair for pair in query.split("&") if pair and _PLACE not in pair]
    url = address + (f"?{'&'.join(pairs)}" if pairs else "")
    if _PLACE in url:
        raise ConfigError(
            "Each tenant has a database of its own here, so the query needs one to ask: write directory = URL under "
            "[tenants]."
        )
    return parse_store_url(url, environ=environ)


def _has_tenants(config: Config) -> bool:
    return bool(config.file.get("tenants")) or any(name.startswith("PILLARBOX_TENANTS_") for name in config.environ)


def read_tenants(config: Config) -> Tenants | None:
    """Read `[tenants]`; None if there is none."""
    settings = read_section(config, TenantSettings, at=("tenants",)).settings
    return Tenants(settings, environ=config.environ) if _has_tenants(config) else None


# --- [store] and [stores.NAME] ---


class Stores(msgspec.Struct, frozen=True):
    """The stores that a configuration names, and the tenants that add to them."""

    named: Mapping[str, StoreAddress]
    tenants: Tenants | None = None
    are_chosen: bool = False
    """By their names, of several that are configured."""

    @property
    def are_many(self) -> bool:
        """More than one, or one that is chosen by its name alone and may be joined by others."""
        return self.tenants is not None or len(self.named) > 1

    def choose_archive(self, folder: str | None, name: str) -> str | None:
        """Return the folder for the archive of one store: files of two stores must not mix."""
        return folder if folder is None or not (self.are_many or self.are_chosen) else os.path.join(folder, name)

    async def find(self) -> Found:
        """Return all stores of this moment. Raises `StoreError` if the tenants cannot be asked for."""
        if self.tenants is None:
            return Found(self.named)
        found = await self.tenants.find(taken=self.named)
        return Found({**self.named, **found.stores}, found.refused)


def list_store_entries(config: Config) -> Mapping[str, Section[StoreSettings]]:
    """Read every table `[stores.NAME]`, and the URLs that flags give for such names."""
    file = config.file.get("stores", {})
    for name, table in file.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"stores.{name} in {config.file_name} must be a table with a url.")
    flags = {path[1] for path in config.flags if path[0] == "stores" and len(path) > 1}
    return {name: _read_entry(config, check_store_name(name)) for name in sorted({*file, *flags})}


def _read_entry(config: Config, name: str) -> Section[StoreSettings]:
    at = ("stores", name)
    file = config.file_layer(at)
    for path in file:
        check_key(path, _PATHS, at=at, where=file[path].origin.where)
    section = build_section(StoreSettings, {**file, **config.flag_layer(at)}, _FIELDS, at=at)
    if section.settings.url is None:
        raise ConfigError(f"The store {name} has no url: write one under [stores.{name}], or give --store {name}=URL.")
    return section


def read_stores(config: Config) -> Stores:
    """Read the stores to work on: those that flags choose, or all that are configured. `ConfigError` if none is."""
    main, entries, tenants = read_store_section(config).settings, list_store_entries(config), read_tenants(config)
    chosen = config.flags.get(("stores",))
    texts = list(chosen.value) if chosen is not None and isinstance(chosen.value, list) else None
    if texts is None and main.url is not None and _is_choice(main.url, entries, tenants):
        texts = [main.url]
    is_main_given = ("store", "url") in config.flags
    if texts is None and main.url is not None and not is_main_given and MAIN in entries:
        raise ConfigError(f"[store] and [stores.{MAIN}] are two stores of one name, {MAIN}: rename [stores.{MAIN}].")
    if texts is not None:
        stores = _choose(texts, main, entries, tenants, config)
        configured = len(entries) + ("url" in config.file.get("store", {}))
        has_names = all((name := text.strip()) in stores or _NAMED.fullmatch(name) for text in texts)
        return Stores(stores, are_chosen=has_names and (tenants is not None or configured > 1))
    named = {name: _to_address(section.settings, config, _name_url(section, name)) for name, section in entries.items()}
    if main.url is not None:
        named = {
            MAIN: _to_address(main, config, _name_url(read_store_section(config))),
            **({} if is_main_given else named),
        }
    if not named and tenants is None:
        raise ConfigError(
            "No store is configured: give --store URL, set PILLARBOX_STORE, or write a url under [store] in the file."
        )
    return Stores(named, None if is_main_given else tenants)


def _is_choice(text: str, entries: Mapping[str, object], tenants: Tenants | None) -> bool:
    """Return whether the text chooses a store by its name, or names the URL that it gives."""
    text = text.strip()
    if _NAMED.fullmatch(text):
        return True
    if entries and _NAME.fullmatch(text):  # no URL looks like this: a wrong name is refused with the nearest
        return True
    return tenants is not None and _TENANT.fullmatch(text) is not None


def _choose(
    texts: Sequence[str],
    main: StoreSettings,
    entries: Mapping[str, Section[StoreSettings]],
    tenants: Tenants | None,
    config: Config,
) -> dict[str, StoreAddress]:
    stores: dict[str, StoreAddress] = {}
    for text in map(str.strip, texts):
        match = _NAMED.fullmatch(text)
        if match is not None:
            name, address = (
                match["name"],
                _to_address(msgspec.structs.replace(main, url=match["url"]), config, f"--store {match['name']}"),
            )
        elif text in entries:
            name, address = text, _to_address(entries[text].settings, config, _name_url(entries[text], text))
        elif tenants is not None and _TENANT.fullmatch(text):
            name, address = text, tenants.get_address(text)
        elif text == MAIN and (unchosen := _read_unchosen(config)).url is not None:
            name, address = MAIN, _to_address(unchosen, config, "store.url")
        elif "://" not in text and entries and _NAME.fullmatch(text):
            raise ConfigError(f"There is no store {text}: {suggest_nearest(text, entries)}.")
        else:
            name, address = MAIN, _to_address(msgspec.structs.replace(main, url=text), config, "--store")
        if name in stores:
            raise ConfigError(f"Two stores are called {name}: write --store NAME=URL with another name for each.")
        stores[name] = address
    return stores


def _read_unchosen(config: Config) -> StoreSettings:
    """Read `[store]` as it is without the flag or variable that chooses it by its name."""
    flags = {path: value for path, value in config.flags.items() if path != ("store", "url") and path[0] != "stores"}
    environ = {name: value for name, value in config.environ.items() if value.strip() != MAIN}
    return read_store_section(msgspec.structs.replace(config, flags=flags, environ=environ)).settings


def _name_url(section: Section[StoreSettings], name: str | None = None) -> str:
    """Name the key or variable that the URL of a store comes from."""
    return section.origin(("url",)).describe(("store", "url") if name is None else ("stores", name, "url"))


def _to_address(settings: StoreSettings, config: Config, where: str) -> StoreAddress:
    url = expand_variables((settings.url or "").strip(), config.environ, where=where)
    url += _build_query(settings, prefix="&" if "?" in url else "?")
    parsed = parse_store_url(url, environ=config.environ)
    return StoreAddress(parsed, choose_names(parsed, Names(settings.schema, settings.prefix)))


def _build_query(settings: StoreSettings, *, prefix: str) -> str:
    """Write the options beside the URL as a query. `parse_store_url` refuses one that the URL has too."""
    pairs = [f"{name}={value}" for name in _STORE_OPTIONS if (value := getattr(settings, name)) is not None]
    return f"{prefix}{'&'.join(pairs)}" if pairs else ""


def read_store(config: Config) -> tuple[StoreUrl, Names]:
    """Read the URL of the one store, and the names of its tables. `ConfigError` if there are several to choose from."""
    stores = read_stores(config)
    if stores.are_many:
        known = ", ".join(sorted(stores.named)[:10])
        hint = f"known are {known}" if known else "a tenant's name chooses its store"
        raise ConfigError(f"Several stores are configured: choose one with --store NAME ({hint}).")
    (address,) = stores.named.values()
    return address.url, address.names
