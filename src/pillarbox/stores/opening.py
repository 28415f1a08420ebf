"""From a store URL to the store it names."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, cast

from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.protocols import Store
from pillarbox.stores.urls import StoreUrl, check_file, store_url

if TYPE_CHECKING:
    from pillarbox.stores.keeping import Keep
    from pillarbox.stores.postgres.connection import Pooler
    from pillarbox.stores.sqlite.connection import Synchronous

__all__ = ["StoreFactory", "open_store"]


class StoreFactory(Protocol):
    """What another package registers for its scheme under the entry point group `pillarbox.stores`."""

    def __call__(self, url: StoreUrl, *, names: Names) -> Store:
        """The store, not yet connected. `ConfigError` for options it does not know."""


def open_store(url: str | StoreUrl, *, names: Names | None = None, asks_only: bool = False) -> Store:
    """The store that a URL names, not yet connected: `open()` it. `MissingExtra` when its driver is not there.

    Who only asks, one question after the other, needs one connection where a relay needs several.
    """
    where = store_url(url) if isinstance(url, str) else url
    known = Names() if names is None else names
    if asks_only and where.scheme in ("postgresql", "mysql"):
        return (_postgres if where.scheme == "postgresql" else _mysql)(where, names=known, connections=1)
    return _factory(where.scheme)(where, names=known)


def _factory(scheme: str) -> StoreFactory:
    match scheme:
        case "postgresql":
            return _postgres
        case "sqlite":
            return _sqlite
        case "mysql":
            return _mysql
        case "memory":
            return _memory
    return _of_another_package(scheme)


def _postgres(url: StoreUrl, *, names: Names, connections: int = 4) -> Store:
    from pillarbox.stores.postgres.store import PostgresStore

    keep = cast("Keep", url.options.get("keep", "full"))
    pooler = cast("Pooler", url.options.get("pooler", "none"))
    return PostgresStore(
        url.dsn,
        schema=names.schema,
        prefix=names.prefix,
        keep=keep,
        pooler=pooler,
        driver=url.driver,
        connections=connections,
    )


def _sqlite(url: StoreUrl, *, names: Names) -> Store:
    from pillarbox.stores.sqlite.store import SqliteStore

    check_file(url, names)
    keep = cast("Keep", url.options.get("keep", "full"))
    synchronous = cast("Synchronous", url.options.get("synchronous", "full"))
    return SqliteStore(url.path, prefix=names.prefix, keep=keep, synchronous=synchronous)


def _mysql(url: StoreUrl, *, names: Names, connections: int = 4) -> Store:
    from pillarbox.stores.mariadb.store import MariadbStore

    keep = cast("Keep", url.options.get("keep", "full"))
    return MariadbStore(url.dsn, schema=names.schema, prefix=names.prefix, keep=keep, connections=connections)


def _memory(url: StoreUrl, *, names: Names) -> Store:  # noqa: ARG001 - nothing to name
    from pillarbox.stores.memory.store import MemoryStore

    return MemoryStore(keep=cast("Keep", url.options.get("keep", "full")))


def _of_another_package(scheme: str) -> StoreFactory:
    for entry in entry_points(group="pillarbox.stores", name=scheme):
        try:
            return cast("StoreFactory", entry.load())
        except ImportError as error:
            raise ConfigError(
                f"The store for {scheme}:// cannot be loaded ({error}); reinstall its package."
            ) from error
    raise ConfigError(f"No installed store is called {scheme!r}.")
