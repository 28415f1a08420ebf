from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.crash.matrix import Setting, setting
from proof.databases import MakePlace, SqlitePlace, in_database, in_server, in_sqlite


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """The consumer, and where the programs come from."""
    with setting(tmp_path_factory.mktemp("crash")) as everything:
        yield everything


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_place(store: str, request: pytest.FixtureRequest) -> Iterator[MakePlace]:
    """Places on that store, removed after each."""
    if store == "postgres":
        yield in_database(request.getfixturevalue("postgres_url"))
        return
    if store == "mariadb":
        yield in_server(request.getfixturevalue("mariadb_server"))
        return
    with in_sqlite() as make:
        yield make


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[SqlitePlace]:
    with in_sqlite() as make, make(tmp_path) as place:
        yield place
