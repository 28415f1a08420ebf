"""A shop for every test of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.shop import Shop
from tests.support.tables import SqliteTables


@pytest.fixture
def shop(tmp_path: Path, sqlite_tables: SqliteTables) -> Shop:
    shop = Shop(tmp_path)
    sqlite_tables.install(shop.file)
    return shop
