"""Empty tables for each test, and one open handle of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from pillarbox.contracts.writer import Insert
from pillarbox.message import Names
from tests.support.mariadb_server import scratch_mariadb
from tests.support.postgres_server import scratch_schema
from tests.support.writers.handles import Handle
from tests.support.writers.kinds import KINDS, STORES
from tests.support.writers.places import MariadbPlace, Place, PostgresPlace, SqlitePlace, message


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(f"{STORES[kind]}_place")  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def shared_place(postgres_url: str) -> Iterator[PostgresPlace]:
    """Made once: creating the tables takes longer than most tests."""
    with scratch_schema(postgres_url) as schema:
        place = PostgresPlace(postgres_url, Names(schema=schema))
        place.install()
        yield place


@pytest.fixture
def postgres_place(shared_place: PostgresPlace) -> Place:
    shared_place.empty()
    return shared_place


@pytest.fixture(scope="session")
def shared_mariadb_place(mariadb_server: str) -> Iterator[MariadbPlace]:
    """Made once, for the same reason."""
    with scratch_mariadb(mariadb_server) as url:
        place = MariadbPlace(url, Names(schema=url.rpartition("/")[2]))
        place.install()
        yield place


@pytest.fixture
def mariadb_place(shared_mariadb_place: MariadbPlace) -> Place:
    shared_mariadb_place.empty()
    return shared_mariadb_place


@pytest.fixture
def sqlite_place(tmp_sqlite: Path) -> Place:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    return place


@pytest.fixture
def keyed(place: Place) -> Callable[..., Insert]:
    """An insert of one message for each key, which it locks."""

    def make(*keys: str | None) -> Insert:
        messages = [message(f"{key}", key=key) for key in keys]
        return Insert(names=place.names, messages=messages, serialize_keys=True)

    return make


@pytest.fixture
async def handle(kind: str, place: Place) -> AsyncIterator[Handle]:
    handle = KINDS[kind][1]()
    await handle.open(place)
    yield handle
    await handle.close()
