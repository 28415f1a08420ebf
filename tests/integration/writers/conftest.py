"""Empty tables for each test, and one open handle of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pillarbox.names import Names
from tests.integration.writers.handles import Handle
from tests.integration.writers.kinds import KINDS, STORES
from tests.integration.writers.places import Place, PostgresPlace, SqlitePlace
from tests.postgres_server import scratch_schema


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


@pytest.fixture
def sqlite_place(tmp_sqlite: Path) -> Place:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    return place


@pytest.fixture
async def handle(kind: str, place: Place) -> AsyncIterator[Handle]:
    handle = KINDS[kind][1]()
    await handle.open(place)
    yield handle
    await handle.close()
