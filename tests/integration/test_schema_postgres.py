"""Installing, changing and checking the tables in PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pillarbox.errors import SchemaMissing, SchemaMixed, SchemaNewer, SchemaOutdated, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.migrations import Migration, build_script, latest_version
from pillarbox.stores.postgres.schema import PostgresSchema
from pillarbox.stores.urls import parse_store_url
from tests.support.next_version import with_next

LATEST = latest_version("postgresql")
VERSIONS = list(range(1, LATEST + 1))
INSERT = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, payload, content_type, source,
                                  correlation_id, event_time)
    values (gen_random_uuid(), 'shop', 3, 'event', 'orders.placed', 'orders', '\\x00ff', 'application/json', '/shop',
            'c1', now())
"""


class Tables:
    """The tables of one schema, through our own code and past it."""

    def __init__(self, url: str, names: Names, *, driver: str) -> None:
        self.url = url
        self.driver = driver
        self.names = names

    def at(
        self, *, migrations: Sequence[Migration] | None = None, lock_timeout: timedelta = timedelta(seconds=10)
    ) -> PostgresSchema:
        url = parse_store_url(self.url.replace("://", f"+{self.driver}://", 1))
        return PostgresSchema(url, names=self.names, migrations=migrations, lock_timeout=lock_timeout)

    def run(self, statement: str) -> list[tuple[object, ...]]:
        with self.connected() as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def connected(self) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(self.url)
        path = sql.SQL("set search_path = {}").format(sql.Identifier(self.names.schema or "public"))
        connection.execute(path)
        return connection

    def versions(self) -> list[object]:
        return [version for (version,) in self.run(f"select version from {self.names.table('schema')} order by 1")]


@pytest.fixture(params=["asyncpg", "psycopg"])
def tables(postgres_url: str, postgres_schema: str, request: pytest.FixtureRequest) -> Tables:
    return Tables(postgres_url, Names(postgres_schema), driver=request.param)


async def test_install_makes_the_tables_and_repeating_it_changes_nothing(tables: Tables) -> None:
    first = await tables.at().install()
    again = await tables.at().install()

    assert [(first.current, first.target), (again.current, again.target)] == [(0, LATEST), (LATEST, LATEST)]
    assert tables.versions() == VERSIONS
    assert await tables.at().verify() == ()


async def test_a_schema_that_is_missing_is_made(tables: Tables) -> None:
    tables.run(f"drop schema {tables.names.schema}")

    await tables.at().install()

    assert await tables.at().verify() == ()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_eight_installers_at_once_all_succeed_and_record_one_version(tables: Tables, isolation: str) -> None:
    tables.run(f"drop schema {tables.names.schema}")
    tables.url += f"?options=-cdefault_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}"

    plans = await asyncio.gather(*(tables.at().install() for _ in range(8)))

    assert sorted(plan.current for plan in plans) == [0, *[LATEST] * 7]
    assert tables.versions() == VERSIONS


async def test_installers_of_several_prefixes_share_a_schema_that_none_has_made(tables: Tables) -> None:
    tables.run(f"drop schema {tables.names.schema}")
    each = [Tables(tables.url, Names(tables.names.schema, f"p{number}_"), driver=tables.driver) for number in range(4)]

    await asyncio.gather(*(one.at().install() for one in each))

    assert [await one.at().verify() for one in each] == [(), (), (), ()]


async def test_without_a_schema_the_search_path_decides(tables: Tables, postgres_schema: str) -> None:
    by_path = Tables(f"{tables.url}?search_path={postgres_schema}", Names(prefix="here_"), driver=tables.driver)

    await by_path.at().install()

    assert await by_path.at().verify() == ()
    assert await Tables(tables.url, Names(postgres_schema, "here_"), driver=tables.driver).at().verify() == ()


async def test_the_next_version_and_back_with_messages_in_the_tables(tables: Tables, tmp_path: Path) -> None:
    migrations = with_next("postgres", tmp_path)
    await tables.at().install()
    tables.run(INSERT)
    before = tables.run("select * from pillarbox_outbox")
    newer = tables.at(migrations=migrations)
    with pytest.raises(SchemaOutdated):
        await newer.verify()
    with pytest.raises(SchemaOutdated):
        await newer.install()

    await newer.upgrade()

    assert tables.run("select id, priority from pillarbox_outbox") == [(1, 7)]
    assert tables.versions() == [*VERSIONS, LATEST + 1]
    assert await newer.verify() == ()
    with pytest.raises(SchemaNewer, match=f"version {LATEST + 1} and this release knows {LATEST}"):
        await tables.at().upgrade()

    await newer.downgrade(target=LATEST)

    assert tables.run("select * from pillarbox_outbox") == before
    assert tables.versions() == VERSIONS
    assert await tables.at().verify() == ()


async def test_a_version_that_fails_half_way_leaves_no_trace(tables: Tables, tmp_path: Path) -> None:
    broken = "alter table pillarbox_outbox add column priority integer;\nalter table no_such_table add column x int;\n"
    await tables.at().install()

    with pytest.raises(SchemaMixed, match="no_such_table"):
        await tables.at(migrations=with_next("postgres", tmp_path, up=broken)).upgrade()

    assert await tables.at().verify() == ()


async def test_a_change_gives_up_rather_than_hold_up_the_writers(tables: Tables, tmp_path: Path) -> None:
    await tables.at().install()
    newer = tables.at(migrations=with_next("postgres", tmp_path), lock_timeout=timedelta(milliseconds=50))

    with tables.connected() as long_transaction:
        long_transaction.execute("select from pillarbox_outbox")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await newer.upgrade()

    assert tables.versions() == VERSIONS


async def test_version_zero_removes_everything_and_nothing_else(tables: Tables) -> None:
    neighbour = Tables(tables.url, Names(tables.names.schema, "other_"), driver=tables.driver)
    tables.run("create table shop (id int)")
    await tables.at().install()
    await neighbour.at().install()

    await tables.at().downgrade(target=0)

    left = (
        "select relname from pg_class where relname like 'pillarbox%' and relnamespace = current_schema()::regnamespace"
    )
    assert tables.run(left) == []
    assert tables.run("select count(*) from shop") == [(0,)]
    assert await neighbour.at().verify() == ()
    with pytest.raises(SchemaMissing):
        await tables.at().verify()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("drop index pillarbox_outbox_late_idx", ["missing: index pillarbox_outbox_late_idx on pillarbox_outbox"]),
        ("drop view pillarbox_messages", ["missing: view pillarbox_messages"]),
        ("drop table pillarbox_lane", ["missing: table pillarbox_lane"]),
        ("drop trigger pillarbox_outbox_wake_trigger on pillarbox_outbox", ["missing: trigger"]),
        ("alter table pillarbox_outbox disable trigger user", ["different: trigger"]),
        ("alter function pillarbox_wake() reset search_path", ["different: function pillarbox_wake"]),
        ("alter function pillarbox_wake() security invoker", ["different: function pillarbox_wake"]),
        ("alter table pillarbox_relay add extra text", ["unexpected: column pillarbox_relay.extra"]),
        ("alter table pillarbox_outbox alter id set cache 50", ["different: column pillarbox_outbox.id is bigint"]),
        (
            "alter table pillarbox_outbox alter tx drop default",
            ["different: column pillarbox_outbox.tx is xid8 not null,"],
        ),
        ("alter table pillarbox_relay alter pid drop not null", ["different: column pillarbox_relay.pid is integer,"]),
        (
            "alter table pillarbox_lane drop constraint pillarbox_lane_partition_check",
            ["missing: constraint on pillarbox_lane: CHECK (partition >= 0 AND partition <= 63)"],
        ),
        (
            "alter table pillarbox_destination drop reason, add reason varchar(9) not null, drop paused_by,"
            " add paused_by text not null",
            [
                "different: column pillarbox_destination.reason is character varying(9) not null, should be text",
                "different: order of columns in pillarbox_destination is destination, paused_at, reason, paused_by",
            ],
        ),
    ],
)
async def test_verify_lists_what_is_not_as_it_should_be(tables: Tables, damage: str, told: list[str]) -> None:
    await tables.at().install()
    tables.run(damage)

    found = [str(difference) for difference in await tables.at().verify()]

    assert len(found) == len(told)
    assert all(line.startswith(beginning) for line, beginning in zip(found, told, strict=True))


async def test_verify_leaves_storage_settings_to_the_administrator_and_no_trace_of_itself(tables: Tables) -> None:
    await tables.at().install()
    tables.run("alter table pillarbox_outbox set (autovacuum_vacuum_scale_factor = 0.2)")

    assert await tables.at().verify() == ()

    assert tables.run("select count(*) from pg_class where relpersistence = 't' and relname like 'pillarbox%'") == [
        (0,)
    ]


async def test_tables_without_a_recorded_version_are_a_mixture(tables: Tables) -> None:
    await tables.at().install()
    tables.run("delete from pillarbox_schema")
    with pytest.raises(SchemaMixed, match="records no version"):
        await tables.at().verify()

    tables.run("drop table pillarbox_schema")
    with pytest.raises(SchemaMixed, match="already exists"):
        await tables.at().install()


async def test_the_printed_sql_does_what_the_commands_do(tables: Tables) -> None:
    tables.run(f"drop schema {tables.names.schema}")

    psql(tables.url, build_script("postgresql", names=tables.names))
    assert await tables.at().verify() == ()

    psql(tables.url, build_script("postgresql", names=tables.names, down=True))
    assert await tables.at().version() == 0


def psql(url: str, text: str) -> None:
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url]
    ran = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
