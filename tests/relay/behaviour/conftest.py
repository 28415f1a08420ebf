"""Every behaviour is shown on every store that survives its process, with the rights of the granted roles alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.message import Names
from pillarbox.relay.breaker import Breaker
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.postgres.driver import DriverName
from tests.support.granted import Logins
from tests.support.relay_behaviour.scene import Scene, mariadb_scene, postgres_scene, sqlite_scene
from tests.support.tables import MariadbTables, PostgresTables

# `make test-portable` runs the portable dialect, and that alone.
STORES = ["portable"] if os.environ.get("PILLARBOX_TEST_PORTABLE") else ["sqlite", "postgres", "mariadb"]


@pytest.fixture(params=STORES)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    if request.param == "sqlite":
        request.getfixturevalue("sqlite_tables").install(tmp_path / "shop.db")
        async with sqlite_scene(tmp_path / "shop.db", is_installed=True) as opened:
            yield opened
        return
    if request.param == "mariadb":
        url, logins = request.getfixturevalue("granted_mariadb"), request.getfixturevalue("mariadb_logins")
        async with mariadb_scene(url, logins, is_installed=True) as opened:
            yield opened
        return
    url, logins = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_logins")
    driver: DriverName = "psycopg" if request.param == "psycopg" else "asyncpg"
    dialect: PostgresDialect = "portable" if request.param == "portable" else "native"
    schema = request.getfixturevalue(f"granted_{dialect}").schema
    async with postgres_scene(url, schema, logins, driver=driver, dialect=dialect, is_installed=True) as opened:
        yield opened


@pytest.fixture
def granted_native(postgres_url: str, postgres_logins: Logins, postgres_tables: PostgresTables) -> Iterator[Names]:
    """Empty tables on which every role has its rights."""
    yield from _lend_postgres(postgres_url, postgres_logins, postgres_tables, dialect="native")


@pytest.fixture
def granted_portable(postgres_url: str, postgres_logins: Logins, postgres_tables: PostgresTables) -> Iterator[Names]:
    yield from _lend_postgres(postgres_url, postgres_logins, postgres_tables, dialect="portable")


def _lend_postgres(url: str, logins: Logins, tables: PostgresTables, *, dialect: PostgresDialect) -> Iterator[Names]:
    def grant(names: Names) -> None:
        for role in logins.users:
            logins.url_as(role, url, names, is_portable=dialect == "portable")

    with tables.lend(dialect=dialect, purpose="granted", prepare=grant) as names:
        yield names


@pytest.fixture
def granted_mariadb(mariadb_logins: Logins, mariadb_tables: MariadbTables) -> Iterator[str]:
    def grant(url: str) -> None:
        for role in mariadb_logins.users:
            mariadb_logins.url_as(role, url, Names())

    with mariadb_tables.lend(prepare=grant, purpose="granted") as url:
        yield url


@pytest.fixture
def short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A destination that is down is asked again often: half a minute is too long for a test."""
    defaults = Breaker.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "longest", timedelta(milliseconds=300))
