"""Stores of several tenants in one PostgreSQL database and in files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pillarbox.relay import relays
from tests.support.many_stores import ManyStores


@pytest.fixture
async def many(tmp_path: Path, postgres_url: str) -> AsyncIterator[ManyStores]:
    opened = ManyStores(tmp_path, postgres_url)
    yield opened
    await opened.clean()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is tried again soon: half a minute is too long for a test."""
    monkeypatch.setattr(relays, "_FIRST_WAIT", 0.1)
    monkeypatch.setattr(relays, "_LONGEST_WAIT", 0.5)
    monkeypatch.setattr(relays, "_FILE_INTERVAL", 0.1)
