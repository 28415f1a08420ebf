"""Every behaviour is shown on every store that survives its process, with the rights of the granted roles alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.relay.breaker import Breaker
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.postgres.driver import DriverName
from tests.support.relay_behaviour.scene import Scene, mariadb_scene, postgres_scene, sqlite_scene

# `make test-portable` runs the portable dialect, and that alone.
STORES = ["portable"] if os.environ.get("PILLARBOX_TEST_PORTABLE") else ["sqlite", "postgres", "mariadb"]


@pytest.fixture(params=STORES)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    if request.param == "sqlite":
        async with sqlite_scene(tmp_path / "shop.db") as opened:
            yield opened
        return
    if request.param == "mariadb":
        url, logins = request.getfixturevalue("mariadb_url"), request.getfixturevalue("mariadb_logins")
        async with mariadb_scene(url, logins) as opened:
            yield opened
        return
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    logins = request.getfixturevalue("postgres_logins")
    driver: DriverName = "psycopg" if request.param == "psycopg" else "asyncpg"
    dialect: PostgresDialect = "portable" if request.param == "portable" else "native"
    async with postgres_scene(url, schema, logins, driver=driver, dialect=dialect) as opened:
        yield opened


@pytest.fixture
def short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A destination that is down is asked again often: half a minute is too long for a test."""
    defaults = Breaker.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "longest", timedelta(milliseconds=300))
