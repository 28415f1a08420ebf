"""A shop for every test of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    await shop.install()
    return shop
