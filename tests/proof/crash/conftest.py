from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.crash.matrix import SharedProcesses, start_shared_processes
from proof.databases import CreateDatabase, SqliteDatabase, find_sqlite, make_database_factory, make_schema_factory


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedProcesses]:
    """The consumer and the fork server."""
    with start_shared_processes(tmp_path_factory.mktemp("crash")) as shared_processes:
        yield shared_processes


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def create_database(store: str, request: pytest.FixtureRequest) -> Iterator[CreateDatabase]:
    """Creates databases on that store, and removes them."""
    if store == "postgres":
        yield make_schema_factory(request.getfixturevalue("postgres_url"))
        return
    if store == "mariadb":
        yield make_database_factory(request.getfixturevalue("mariadb_server"))
        return
    with find_sqlite() as create:
        yield create


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with find_sqlite() as create, create(tmp_path) as database:
        yield database
