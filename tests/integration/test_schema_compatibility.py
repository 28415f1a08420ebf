"""Stores on tables of a neighbouring version, and the check that a version keeps what it declares."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pymysql
import pytest

from pillarbox.contracts.store import Store, VersionedStore
from pillarbox.errors import SchemaNewer, SchemaOutdated, StoreError, StoreUnavailable
from pillarbox.message import Names
from pillarbox.relay.schema_watch import SchemaWatch
from pillarbox.stores.compatibility import FIRST_DECLARED
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.mariadb.connection import build_statements as build_mariadb_statements
from pillarbox.stores.migrations import Migration, latest_version, load_release
from pillarbox.stores.sql import Statements
from pillarbox.stores.sqlite.connection import build_statements as build_sqlite_statements
from pillarbox.telemetry import Telemetry
from tests.support.mariadb_server import connected
from tests.support.next_version import build_release, with_next

LATEST = latest_version("sqlite")
FOLDERS = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mariadb"}
HEADER = "-- readable from: {readable}\n-- writable from: {writable}\n-- runs on: {runs_on}\n"
ADD = "alter table pillarbox_history add column note text;\n"
MISSING_COLUMN = 1054
DROP = "alter table pillarbox_history drop column note;\n"


class Place(msgspec.Struct, frozen=True):
    """Tables of this release, which can be taken to a made-up next version."""

    url: str
    names: Names
    folder: Path

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]

    def build_next(self, *, readable: int = LATEST, writable: int = LATEST, up: str = ADD) -> Sequence[Migration]:
        header = HEADER.format(readable=readable, writable=writable, runs_on=LATEST)
        return with_next(FOLDERS[self.scheme], self.folder, up=header + up, down=DROP)

    async def upgrade(self, **options: Any) -> None:
        await open_schema(self.url, names=self.names, migrations=self.build_next(**options)).upgrade()

    async def downgrade(self) -> None:
        await open_schema(self.url, names=self.names, migrations=self.build_next()).downgrade(target=LATEST)

    def store(self, *, reads_only: bool = False) -> Store:
        return open_store(self.url, names=self.names, reads_only=reads_only)

    @asynccontextmanager
    async def opened(self, *, reads_only: bool = False) -> AsyncIterator[Store]:
        store = self.store(reads_only=reads_only)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    folder = tmp_path / "migrations"
    folder.mkdir()
    match request.param:
        case "postgresql":
            url, names = request.getfixturevalue("postgres_url"), Names(request.getfixturevalue("postgres_schema"))
        case "mysql":
            url, names = request.getfixturevalue("mariadb_url"), Names()
        case _:
            url, names = f"sqlite:///{tmp_path / 'shop.db'}", Names()
    await open_schema(url, names=names).install()
    return Place(url, names, folder)


def pretend(monkeypatch: pytest.MonkeyPatch, release: Migration) -> None:
    """Have the stores believe that they belong to that release."""
    for module in ("pillarbox.stores.sync_sql.store", "pillarbox.stores.postgres.store"):
        monkeypatch.setattr(f"{module}.load_release", lambda _: release)


async def test_an_older_release_works_with_tables_that_allow_it(place: Place) -> None:
    await place.upgrade()

    async with place.opened() as store:
        assert isinstance(store, VersionedStore)
        assert await store.check_schema() == LATEST + 1
        assert await store.counts() == []


async def test_an_older_release_reads_tables_that_it_may_not_write(place: Place) -> None:
    await place.upgrade(writable=LATEST + 1)

    async with place.opened(reads_only=True) as store:
        assert await store.counts() == []
    with pytest.raises(SchemaNewer, match="may read but not write"):
        await place.store().open()


async def test_an_older_release_refuses_tables_that_do_not_allow_it(place: Place) -> None:
    await place.upgrade(readable=LATEST + 1, writable=LATEST + 1)

    for reads_only in (False, True):
        with pytest.raises(SchemaNewer, match=f"version {LATEST + 1} and this release knows {LATEST}"):
            await place.store(reads_only=reads_only).open()


async def test_an_older_release_leaves_tables_alone_that_it_may_use(place: Place) -> None:
    await place.upgrade()

    plan = await open_schema(place.url, names=place.names).upgrade()

    assert (plan.current, plan.target, list(plan.steps)) == (LATEST + 1, LATEST + 1, [])
    assert (await open_schema(place.url, names=place.names).install()).steps == []
    with pytest.raises(SchemaNewer):
        await open_schema(place.url, names=place.names).downgrade(target=1)


async def test_a_newer_release_works_with_tables_that_it_runs_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, build_release(LATEST + 1, runs_on=LATEST))
    async with place.opened() as store:
        assert isinstance(store, VersionedStore)
        assert await store.check_schema() == LATEST

    pretend(monkeypatch, build_release(LATEST + 1))
    with pytest.raises(SchemaOutdated, match=f"version {LATEST} and this release needs {LATEST + 1}"):
        await place.store().open()


async def test_an_open_store_follows_the_tables_up_and_down(place: Place) -> None:
    async with place.opened() as store:
        assert isinstance(store, VersionedStore)
        await place.upgrade()
        assert await store.check_schema() == LATEST + 1
        await place.downgrade()
        assert await store.check_schema() == LATEST


# --- the watch of a relay ---


class _Failures(Telemetry):
    def __init__(self) -> None:
        self.seen: list[Exception] = []

    def on_store_failed(self, what: str, error: Exception) -> None:
        assert what == "reading the version of the tables"
        self.seen.append(error)


async def test_a_relay_that_may_not_go_on_is_told_so_in_one_sentence(place: Place) -> None:
    async with place.opened() as store:
        watch = SchemaWatch(store, interval=0.01, telemetry=Telemetry())
        await watch.run_once()
        await place.upgrade(readable=LATEST + 1, writable=LATEST + 1)
        with pytest.raises(SchemaNewer, match="upgrade the pillarbox package"):
            await asyncio.wait_for(watch.run(), 30)


async def test_a_statement_that_does_not_fit_makes_the_relay_look_at_once(place: Place) -> None:
    async with place.opened() as store:
        watch = SchemaWatch(store, interval=3600, telemetry=Telemetry())
        await place.upgrade(readable=LATEST + 1, writable=LATEST + 1)
        running = asyncio.create_task(watch.run())
        watch.on_store_failed("settling", StoreUnavailable("away"))
        watch.on_store_failed("settling", StoreError("column x does not exist"))
        with pytest.raises(SchemaNewer):
            await asyncio.wait_for(running, 30)


async def test_tables_that_are_missing_are_waited_for(place: Place) -> None:
    failures = _Failures()
    async with place.opened() as store:
        watch = SchemaWatch(store, interval=0.01, telemetry=failures)
        await open_schema(place.url, names=place.names).downgrade(target=0)
        await watch.run_once()
    assert [type(error).__name__ for error in failures.seen] == ["SchemaMissing"]


# --- what a version declares, it keeps ---


async def find_broken_statements(place: Place, *, version: int | None = None) -> list[str]:
    """Return the statements that the tables at the place do not take; with a version, those for tables of it."""
    match place.scheme:
        case "postgresql":
            statements = Statements("pillarbox.stores.postgres", place.names)
            find = _find_broken_on_postgres
        case "sqlite":
            statements, find = build_sqlite_statements(place.names), _find_broken_on_sqlite
        case _:
            statements, find = build_mariadb_statements(place.names), _find_broken_on_mariadb
    statements.use_version(version)
    return await asyncio.to_thread(find, place, statements)


def _find_broken_on_postgres(place: Place, statements: Statements) -> list[str]:
    broken = []
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(f"set search_path = {place.names.schema}".encode())
        for number, (name, text) in enumerate(statements.items()):
            try:
                connection.execute(f"prepare checked_{number} as {text}".encode())
            except psycopg.errors.UndefinedColumn:
                broken.append(name)
            except psycopg.Error:  # a part of a statement, or a parameter whose type only the driver knows
                pass
    return broken


def _find_broken_on_sqlite(place: Place, statements: Statements) -> list[str]:
    broken = []
    with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as file:
        for name, text in statements.items():
            values = dict.fromkeys(re.findall(r":([a-z_]\w*)", text), "0")
            try:
                file.execute(f"explain {text}", values)
            except sqlite3.OperationalError as error:
                if "no such column" in str(error) or "has no column" in str(error):
                    broken.append(name)
    return broken


def _find_broken_on_mariadb(place: Place, statements: Statements) -> list[str]:
    broken = []
    with connected(place.url, autocommit=True) as server, server.cursor() as cursor:
        for name, text in statements.items():
            lists = re.sub(r"\bin %\(\w+\)s", "in ('0')", text)
            plain = re.sub(r"%\(\w+\)s", "'0'", lists).replace("%%", "%")
            try:
                cursor.execute(f"explain {plain}")
            except pymysql.Error as error:
                if error.args[0] == MISSING_COLUMN:
                    broken.append(name)
    return broken


async def test_statements_of_this_release_fit_a_version_that_allows_it(place: Place) -> None:
    assert await find_broken_statements(place) == []
    await place.upgrade()
    assert await find_broken_statements(place) == []


async def test_a_version_that_takes_a_column_away_is_found_out(place: Place) -> None:
    await place.upgrade(up="alter table pillarbox_relay drop column labels;\n")
    assert "register" in await find_broken_statements(place)


async def test_statements_of_the_release_before_fit_these_tables_if_they_allow_it(place: Place) -> None:
    """Those for tables of the version before are what that release runs. The first one that declares allows none."""
    release = load_release(place.scheme)
    if (release.declared.readable_from or LATEST) < LATEST:
        assert await find_broken_statements(place, version=LATEST - 1) == []
    else:
        assert LATEST == FIRST_DECLARED
