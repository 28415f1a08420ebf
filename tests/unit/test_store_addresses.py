"""The text of a store is its address without secrets, as the log shows it."""

from __future__ import annotations

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.store import Store
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.factory import open_store
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.memory import MemoryStore
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite.store import SqliteStore

SECRET = "g%24heim"


@pytest.mark.parametrize(
    ("store", "address"),
    [
        (SqliteStore("shop.db"), "sqlite:///shop.db"),
        (SqliteStore("/var/lib/shop.db"), "sqlite:////var/lib/shop.db"),
        (open_store("sqlite:///shop.db?synchronous=normal"), "sqlite:///shop.db"),
        (PostgresStore(f"postgresql://app:{SECRET}@db.example/shop", schema="mail"), "postgresql://app:***@db.example/shop"),
        (open_store(f"postgresql+psycopg://app:{SECRET}@db.example/shop"), "postgresql://app:***@db.example/shop"),
        (PostgresStore(f"host=db.example password={SECRET}"), "an address that cannot be shown"),
        (MariadbStore(f"mysql://app:{SECRET}@db.example/shop"), "mysql://app:***@db.example/shop"),
        (MemoryStore(), "memory://"),
    ],
)  # fmt: skip
def test_a_store_is_shown_by_its_address(store: Store, address: str) -> None:
    relay = Relay(store, [Destination(MemoryTransport, DestinationSettings(name="billing"))])
    assert str(store) == address
    assert str(relay) == f"relay from {address} to billing"
