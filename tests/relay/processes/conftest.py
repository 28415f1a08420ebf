from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.relay_processes.child import Part
from tests.support.relay_processes.fleet import Fleet
from tests.support.relay_processes.places import Place, PostgresPlace, SqlitePlace
from tests.support.relay_processes.scene import Scene


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store with its tables, and the writers' own."""
    found: Place
    if request.param == "sqlite":
        found = SqlitePlace(request.getfixturevalue("tmp_sqlite"))
    else:
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        found = PostgresPlace(url, schema, request.getfixturevalue("postgres_logins"))
    yield found
    found.close()


@pytest.fixture
def scene(place: Place, tmp_path: Path) -> Iterator[Scene]:
    """The store, and relay processes that end with the test. On PostgreSQL they have the rights of a relay alone."""
    fleet = Fleet(Part(store=place.store, schema=place.names.schema, sink=str(tmp_path / "sink")), logs=tmp_path)
    try:
        yield Scene(place, fleet)
    finally:
        fleet.close()
        print(fleet.told())  # noqa: T201 - shown when the test fails
