"""A schema change of MariaDB that is killed after any of its statements: the next command leaves whole tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pymysql
import pytest

import pillarbox.stores.mariadb.schema as mariadb_schema
from pillarbox.errors import SchemaMixed, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.mariadb.schema import MariadbSchema, _read_catalog
from pillarbox.stores.migrations import build_plan, latest_version, load_migrations, split_script
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected

LATEST = latest_version("mysql")
INSERT = """
    insert into pillarbox_outbox (message_id, destination, `partition`, kind, type, topic, payload, content_type,
                                  source, correlation_id, event_time)
    values ('m1', 'shop', 3, 'event', 'orders.placed', 'orders', x'00ff', 'application/json', '/shop', 'c1', 1)
"""
READS = ("select version", "select max", "select get_lock", "select release_lock", "select 1", "set ", "show ")


class Gallows:
    """Connects, and drops the connection after so many statements that may change something."""

    def __init__(self) -> None:
        self.left: int | None = None
        self._connect = connect

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return _Connection(self._connect(*arguments, **options), self)

    def count(self, connection: Any, statement: str) -> None:
        if self.left is None or statement.strip().lower().startswith(READS):
            return
        self.left -= 1
        if self.left == 0:
            connection._force_close()
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


class _Connection:
    def __init__(self, connection: Any, gallows: Gallows) -> None:
        self._connection = connection
        self._gallows = gallows

    def cursor(self) -> Any:
        cursor, connection, gallows = self._connection.cursor(), self._connection, self._gallows
        execute = cursor.execute

        def count(statement: str, values: Any = None) -> Any:
            result = execute(statement, values)
            gallows.count(connection, statement)
            return result

        cursor.execute = count
        return cursor

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


class Tables:
    """Tables that are taken from version to version, killed and repaired."""

    def __init__(self, url: str, gallows: Gallows) -> None:
        self._url = url
        self._gallows = gallows
        self._schema = MariadbSchema(parse_store_url(url), names=Names())

    async def change(self, target: int, *, up: bool) -> None:
        await (self._schema.upgrade(target=target) if up else self._schema.downgrade(target=target))

    async def kill(self, target: int, *, up: bool, after: int) -> None:
        """Kill a change after this many statements."""
        self._gallows.left = after
        with pytest.raises(StoreUnavailable):
            await self.change(target, up=up)
        self._gallows.left = None

    def read(self) -> tuple[list[int], Mapping[str, str]]:
        """Return the recorded versions, and the catalog."""
        with closing(connected(self._url, autocommit=True)) as connection, connection.cursor() as cursor:

            def fetch(sql: str) -> list[Any]:
                cursor.execute(sql)
                return list(cursor.fetchall())

            has_versions = fetch("show tables like 'pillarbox\\_schema'")
            versions = (
                [row[0] for row in fetch("select version from pillarbox_schema order by 1")] if has_versions else []
            )
            return versions, dict(_read_catalog(fetch, Names())) | {"tables": str(fetch("show tables"))}

    def run(self, statement: str) -> list[Any]:
        with closing(connected(self._url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    async def verify(self) -> object:
        return await self._schema.verify()


@pytest.fixture
def tables(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> Tables:
    gallows = Gallows()
    monkeypatch.setattr(mariadb_schema, "connect", gallows.connect)
    return Tables(mariadb_url, gallows)


def count_statements(version: int, *, up: bool) -> int:
    before, after = (version - 1, version) if up else (version, version - 1)
    (step,) = build_plan(load_migrations("mysql"), current=before, target=after, commits_each=True).steps
    return len(list(split_script(step.sql(Names(), quote="`"))))


def choose_statements(version: int, *, up: bool) -> list[int]:
    """Return after which statements to kill: every one of the latest version, and some of each older one."""
    count = count_statements(version, up=up)
    if version == LATEST:
        return list(range(1, count + 1))
    return sorted({1, (count + 2) // 3, (2 * count + 2) // 3, count})


@pytest.mark.parametrize("version", range(1, LATEST + 1))
@pytest.mark.parametrize("up", [True, False], ids=["upgrade", "downgrade"])
async def test_a_change_that_was_killed_after_any_statement_is_finished_or_undone(
    tables: Tables, version: int, up: bool
) -> None:
    older, newer = version - 1, version
    if older:
        await tables.change(older, up=True)
        tables.run(INSERT)
    states = {older: tables.read()}
    await tables.change(newer, up=True)
    states[newer] = tables.read()
    start, target = (older, newer) if up else (newer, older)
    if up:
        await tables.change(older, up=False)
        assert tables.read() == states[older]
    for after in choose_statements(version, up=up):
        for goes_on in (True, False):
            await tables.kill(target, up=up, after=after)
            wanted = target if goes_on else start
            await tables.change(wanted, up=wanted == newer)
            assert tables.read() == states[wanted], f"after {after} statements"
            if older:
                assert tables.run("select message_id from pillarbox_outbox") == [("m1",)]
            if wanted != start:
                await tables.change(start, up=start == newer)
                assert tables.read() == states[start]


@pytest.mark.parametrize("after", [2, 9, 16, 23])
async def test_an_upgrade_after_a_downgrade_that_was_killed_leaves_tables_that_fit(tables: Tables, after: int) -> None:
    await tables.change(LATEST, up=True)
    await tables.kill(1, up=False, after=after)
    await tables.change(LATEST, up=True)
    assert await tables.verify() == ()


async def test_tables_that_are_half_changed_are_reported(tables: Tables) -> None:
    await tables.change(LATEST, up=True)
    await tables.kill(LATEST - 1, up=False, after=2)
    with pytest.raises(SchemaMixed, match=f"interrupted in version {LATEST}"):
        await tables.verify()
