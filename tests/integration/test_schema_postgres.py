"""Installing, changing and checking the tables in PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pillarbox.errors import SchemaMissing, SchemaMixed, SchemaNewer, SchemaOutdated, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.lock_wait import ignore_report
from pillarbox.stores.migrations import Migration, build_plan, build_script, latest_version, load_migrations
from pillarbox.stores.postgres import schema as schema_module
from pillarbox.stores.postgres.schema import PostgresSchema
from pillarbox.stores.urls import parse_store_url
from tests.support.granted import Logins
from tests.support.next_version import with_next
from tests.support.processes import end_process

LATEST = latest_version("postgresql")
VERSIONS = list(range(1, LATEST + 1))
BEFORE_LOOKUPS = 5
"""The last version whose indexes for lookups were not optional."""
BEFORE_PLACES = 8
"""The last version without the index of places in lanes."""
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
        self,
        *,
        migrations: Sequence[Migration] | None = None,
        lock_timeout: timedelta = timedelta(seconds=10),
        patience: timedelta = timedelta(minutes=1),
        report: Callable[[str], None] = ignore_report,
    ) -> PostgresSchema:
        url = parse_store_url(self.url.replace("://", f"+{self.driver}://", 1))
        return PostgresSchema(
            url, names=self.names, migrations=migrations, lock_timeout=lock_timeout, patience=patience, report=report
        )

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
    newer = tables.at(
        migrations=with_next("postgres", tmp_path), lock_timeout=timedelta(milliseconds=50), patience=timedelta(0)
    )

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


LOOKUPS = [
    "pillarbox_history_corr_idx",
    "pillarbox_history_message_idx",
    "pillarbox_history_status_idx",
    "pillarbox_outbox_corr_idx",
]
CLOSED = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, payload, content_type,
                                   source, correlation_id, event_time, created_at, attempts, status_at, status)
    values (-7, gen_random_uuid(), 'shop', 3, 'event', 'orders.placed', 'orders', '\\x00ff', 'application/json',
            '/shop', 'c1', now(), now(), 0, now(), 'delivered')
"""


def list_lookups(tables: Tables) -> list[object]:
    found = tables.run("select indexname from pg_indexes where schemaname = current_schema() order by 1")
    return [name for (name,) in found if name in LOOKUPS]


async def test_new_tables_have_lookups_until_they_are_dropped(tables: Tables) -> None:
    await tables.at().install()
    assert list_lookups(tables) == LOOKUPS
    assert await tables.at().change_lookups(wanted=True) == []

    assert sorted(await tables.at().change_lookups(wanted=False)) == LOOKUPS
    assert list_lookups(tables) == []
    assert await tables.at().verify() == ()
    assert await tables.at().change_lookups(wanted=False) == []

    assert sorted(await tables.at().change_lookups(wanted=True)) == LOOKUPS
    assert list_lookups(tables) == LOOKUPS
    assert await tables.at().verify() == ()


async def test_verify_accepts_some_lookups_but_no_other_index_of_their_name(tables: Tables) -> None:
    await tables.at().install()
    await tables.at().change_lookups(wanted=False)
    tables.run("create index pillarbox_history_message_idx on pillarbox_history (message_id)")
    assert await tables.at().verify() == ()

    tables.run("create index pillarbox_history_corr_idx on pillarbox_history (causation_id)")
    (found,) = await tables.at().verify()
    assert str(found).startswith("different: index pillarbox_history_corr_idx on pillarbox_history is CREATE INDEX")


@pytest.mark.parametrize(
    "damage",
    [
        "update pg_index set indisvalid = false where indexrelid = 'pillarbox_history_message_idx'::regclass",
        "drop index pillarbox_history_message_idx; "
        "create index pillarbox_history_message_idx on only pillarbox_history (message_id); "
        "create index pillarbox_history_p0_message_idx on pillarbox_history_p0 (message_id)",
    ],
    ids=["marked", "built on one partition"],
)
async def test_a_lookup_that_was_not_built_to_the_end_is_built_again(tables: Tables, damage: str) -> None:
    await tables.at().install()
    await tables.at().change_lookups(wanted=True)
    tables.run(damage)
    assert [str(one) for one in await tables.at().verify()] != []

    assert await tables.at().change_lookups(wanted=True) == ["pillarbox_history_message_idx"]
    assert await tables.at().verify() == ()


async def test_several_processes_may_change_lookups_at_once(tables: Tables) -> None:
    await tables.at().install()
    await tables.at().change_lookups(wanted=False)

    changed = await asyncio.gather(*(tables.at().change_lookups(wanted=True) for _ in range(3)))

    assert sorted(name for names in changed for name in names) == LOOKUPS
    assert await tables.at().verify() == ()


async def test_lookups_are_built_while_a_writer_has_a_transaction_open(tables: Tables) -> None:
    """An index that is built concurrently waits for the writer, and holds up none."""
    await tables.at().install()
    await tables.at().change_lookups(wanted=False)
    with tables.connected() as writer:
        writer.execute(INSERT)
        change = asyncio.create_task(tables.at().change_lookups(wanted=True))
        waits = (
            "select count(*) from pg_stat_activity "
            f"where query like 'create index%{tables.names.schema}%' "
            "and cardinality(pg_blocking_pids(pid)) > 0"
        )
        while not change.done() and tables.run(waits) == [(0,)]:  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(0.01)
        assert not change.done()
        tables.run(f"set lock_timeout = '5s'; {INSERT}")
    assert sorted(await change) == LOOKUPS


async def test_older_tables_have_no_lookups_that_are_optional(tables: Tables) -> None:
    await tables.at().upgrade(target=LATEST - 1)
    with pytest.raises(SchemaOutdated):
        await tables.at().change_lookups(wanted=False)


async def test_an_upgrade_keeps_the_lookups_and_a_downgrade_builds_them(tables: Tables) -> None:
    await tables.at().upgrade(target=BEFORE_LOOKUPS)
    tables.run(CLOSED)
    rows = tables.run("select * from pillarbox_history")

    await tables.at().upgrade()
    assert list_lookups(tables) == LOOKUPS
    assert await tables.at().verify() == ()
    assert tables.run("select * from pillarbox_history") == [(*row, None) for row in rows], "a column is new"

    await tables.at().change_lookups(wanted=False)
    await tables.at().downgrade(target=BEFORE_LOOKUPS)
    assert list_lookups(tables) == LOOKUPS
    assert tables.run("select * from pillarbox_history") == rows


async def test_queues_never_shrink_under_a_lock_that_stops_their_writers(tables: Tables) -> None:
    await tables.at().install()
    found = tables.run(
        "select relname from pg_class where relnamespace = current_schema()::regnamespace "
        "and 'vacuum_truncate=off' = any(reloptions) order by 1"
    )
    assert [name for (name,) in found] == [f"pillarbox_{name}" for name in ("claim", "outbox", "relay", "rollup")]

    await tables.at().downgrade(target=BEFORE_LOOKUPS)
    left = "select count(*) from pg_class where relname like 'pillarbox%' and 'vacuum_truncate=off' = any(reloptions)"
    assert tables.run(f"{left} and relnamespace = current_schema()::regnamespace") == [(0,)]


async def test_payloads_are_compressed_with_lz4_where_the_server_has_it(tables: Tables) -> None:
    await tables.at().install()
    if ("lz4",) not in tables.run("select unnest(enumvals) from pg_settings where name = 'default_toast_compression'"):
        pytest.skip("the server has no lz4")
    found = tables.run(
        "select attcompression from pg_attribute where attname = 'payload' and attrelid in "
        "('pillarbox_outbox'::regclass, 'pillarbox_history'::regclass)"
    )
    assert found == [("l",), ("l",)]


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


# --- partitions of history ---

BEFORE_PARTITIONS = next(one.version for one in load_migrations("postgresql") if one.name == "partitions") - 1
REPLACED = 2**52 + 5
BOUNDS = """
    select c.relname, pg_get_expr(relpartbound, c.oid) from pg_inherits join pg_class c on c.oid = inhrelid
     where inhparent = 'pillarbox_history'::regclass order by c.oid
"""


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_history_becomes_partitions_with_all_that_is_in_it_and_one_table_again(
    tables: Tables, postgres_logins: Logins, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(schema_module, "_LARGE", -1)
    reader = postgres_logins.users["viewer"]
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    tables.run(CLOSED)
    tables.run("update pillarbox_history set id = 1234567")
    tables.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 1234567)")
    if not large:
        tables.run(CLOSED.replace("values (-7,", f"values ({REPLACED},"))
    tables.run(f"grant select on pillarbox_history to {reader}; grant select (id) on pillarbox_messages to {reader}")
    tables.run("drop index pillarbox_history_corr_idx")
    before = tables.run("select * from pillarbox_history order by id")

    await tables.at().upgrade()

    assert await tables.at().verify() == ()
    assert tables.run("select * from pillarbox_history order by id") == before
    assert tables.run("select id from pillarbox_messages order by id") == [row[:1] for row in before]
    bound = 11 if large else 3
    assert tables.run(BOUNDS)[0] == ("pillarbox_history_p0", f"FOR VALUES FROM (MINVALUE) TO ('{bound}000000')")
    assert tables.run("select id from pillarbox_history_default") == ([] if large else [(REPLACED,)])
    assert tables.run("select conname from pg_constraint where conname like '%bound%'") == []
    assert "pillarbox_history_corr_idx" not in list_lookups(tables)
    rights = (
        f"select has_table_privilege('{reader}', 'pillarbox_history', 'select'), "
        f"has_column_privilege('{reader}', 'pillarbox_messages', 'id', 'select')"
    )
    assert tables.run(rights) == [(True, True)]
    tables.run(CLOSED.replace("values (-7,", "values (11000001,"))
    tables.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 11000001)")

    await tables.at().downgrade(target=BEFORE_PARTITIONS)

    assert tables.run("select id from pillarbox_history where id <> 11000001 order by id") == [r[:1] for r in before]
    assert tables.run("select count(*) from pillarbox_messages") == [(len(before) + 1,)]
    assert tables.run("select relkind::text from pg_class where oid = 'pillarbox_history'::regclass") == [("r",)]
    assert tables.run("select count(*) from pg_class where relname ~ '^pillarbox_history_(p[0-9]|default)' "
                      "and relnamespace = current_schema()::regnamespace") == [(0,)]  # fmt: skip
    assert tables.run(rights) == [(True, True)]
    await tables.at().upgrade()
    assert await tables.at().verify() == ()


async def test_an_older_version_reads_no_null_that_stands_for_the_usual(tables: Tables) -> None:
    await tables.at().install()
    usual = CLOSED.replace("'event'", "null").replace("'application/json'", "null").replace("now(), 0,", "now(), null,")
    tables.run(usual)
    shown = "select kind, content_type, attempts from pillarbox_messages"
    assert tables.run(shown) == [("event", "application/json", 0)]
    await tables.at().downgrade(target=BEFORE_PLACES)
    assert tables.run(shown) == [("event", "application/json", 0)]
    assert tables.run(shown.replace("messages", "history")) == [("event", "application/json", 0)]
    await tables.at().upgrade()
    assert await tables.at().verify() == ()


@pytest.mark.parametrize("large", [False, True])
async def test_the_index_of_a_large_outbox_is_built_before_its_tables_are_locked(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(schema_module, "_LARGE", 0 if large else 2**40)
    await tables.at().upgrade(target=BEFORE_PLACES)
    tables.run(INSERT)
    with tables.connected() as other:
        other.execute("select from pillarbox_outbox")  # stops the migration, but no index that is built concurrently
        with pytest.raises(StoreUnavailable):
            await tables.at(lock_timeout=timedelta(milliseconds=100), patience=timedelta(0)).upgrade()
    built = "select indisvalid from pg_index where indexrelid = to_regclass('pillarbox_outbox_place_idx')"
    assert tables.run(built) == ([(True,)] if large else [])
    await tables.at().upgrade()
    assert await tables.at().verify() == ()


@pytest.mark.parametrize("large", [False, True])
async def test_an_index_whose_build_was_interrupted_is_built_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(schema_module, "_LARGE", 0 if large else 2**40)
    await tables.at().upgrade(target=BEFORE_PLACES)
    tables.run(INSERT)
    tables.run("create index pillarbox_outbox_place_idx on pillarbox_outbox (id)")
    tables.run("update pg_index set indisvalid = false where indexrelid = 'pillarbox_outbox_place_idx'::regclass")
    await tables.at().upgrade()
    assert await tables.at().verify() == ()


async def test_a_partition_that_waits_to_be_removed_comes_back_with_the_older_version(tables: Tables) -> None:
    await tables.at().install()
    tables.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 3500000)")
    tables.run(CLOSED.replace("values (-7,", "values (2000001,"))
    tables.run("""select pillarbox_history_detach(2, '{}', '{"delivered": "2999-01-01"}')""")
    assert tables.run("select count(*) from pillarbox_history") == [(0,)]
    await tables.at().downgrade(target=BEFORE_PARTITIONS)
    assert tables.run("select id from pillarbox_history") == [(2_000_001,)]


async def test_a_large_history_is_not_read_under_the_lock_unless_it_was_proved_before(tables: Tables) -> None:
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    tables.run(CLOSED)
    script = build_script("postgresql", names=tables.names, start=BEFORE_PARTITIONS)
    limit = "set pillarbox.most_bytes_scanned = '0';"
    with pytest.raises(psycopg.Error, match="too large to be read under a lock"):
        tables.run(limit + script)
    assert tables.versions() == VERSIONS[:BEFORE_PARTITIONS]

    tables.run(
        "alter table pillarbox_history add constraint pillarbox_history_bound_chk check (id < 7000000) not valid"
    )
    tables.run("alter table pillarbox_history validate constraint pillarbox_history_bound_chk")
    tables.run(limit + script)

    assert tables.run(BOUNDS)[0] == ("pillarbox_history_p0", "FOR VALUES FROM (MINVALUE) TO ('7000000')")
    assert await tables.at().verify() == ()


async def test_an_upgrade_that_fails_leaves_no_bound_behind(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_LARGE", -1)
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    tables.run(CLOSED)
    tables.run("create table pillarbox_history_p0 (id int)")
    with pytest.raises(SchemaMixed):
        await tables.at().upgrade()
    assert tables.run("select conname from pg_constraint where conname like '%bound%'") == []


# --- steps outside a transaction, and what a killed process leaves behind ---

ONLINE = f"""-- transaction: none
-- readable from: {LATEST}
-- writable from: {LATEST}
-- runs on: {LATEST}
alter table pillarbox_history add column if not exists note text;
create index concurrently if not exists pillarbox_history_note_idx on pillarbox_history (note, id);
create index concurrently if not exists pillarbox_outbox_source_idx on pillarbox_outbox (source);
"""
ONLINE_DOWN = """
drop index concurrently if exists pillarbox_outbox_source_idx;
drop index concurrently if exists pillarbox_history_note_idx;
alter table pillarbox_history drop column if exists note;
"""
VALID = """
    select relname, indisvalid from pg_index join pg_class c on c.oid = indexrelid
     where relname in ('pillarbox_history_note_idx', 'pillarbox_outbox_source_idx')
       and relnamespace = current_schema()::regnamespace
     order by 1
"""


async def test_a_step_outside_a_transaction_builds_indexes_while_a_writer_works(tables: Tables, tmp_path: Path) -> None:
    await tables.at().install()
    told: list[str] = []
    newer = tables.at(
        migrations=with_next("postgres", tmp_path, up=ONLINE, down=ONLINE_DOWN),
        lock_timeout=timedelta(milliseconds=100), patience=timedelta(0), report=told.append,
    )  # fmt: skip

    with tables.connected() as writer:
        writer.execute(INSERT.encode())
        upgrade = asyncio.create_task(newer.upgrade())
        waits = "select count(*) from pg_stat_activity where query like 'create index concurrently%outbox_source%'"
        while tables.run(waits) == [(0,)]:  # noqa: ASYNC110 - another session builds
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # longer than its patience for a lock
        tables.run(f"set lock_timeout = '5s'; {INSERT}")  # nobody stands behind the build
        writer.commit()
        await upgrade

    assert tables.run(VALID) == [("pillarbox_history_note_idx", True), ("pillarbox_outbox_source_idx", True)]
    assert tables.versions()[-1] == LATEST + 1
    assert await newer.verify() == ()
    assert f"{LATEST + 1:04}_priority: statement 3 of 3" in told
    await newer.downgrade(target=LATEST)
    assert await tables.at().verify() == ()


async def test_a_step_that_was_cut_off_is_finished_by_the_next_upgrade(tables: Tables, tmp_path: Path) -> None:
    await tables.at().install()
    tables.run("alter table pillarbox_history add column note text")
    tables.run("create index pillarbox_history_note_idx on only pillarbox_history (note, id)")
    tables.run("create index pillarbox_outbox_source_idx on pillarbox_outbox (source)")
    tables.run("update pg_index set indisvalid = false where indexrelid = 'pillarbox_outbox_source_idx'::regclass")
    assert tables.run(VALID) == [("pillarbox_history_note_idx", False), ("pillarbox_outbox_source_idx", False)]

    newer = tables.at(migrations=with_next("postgres", tmp_path, up=ONLINE, down=ONLINE_DOWN))
    await newer.upgrade()

    assert tables.run(VALID) == [("pillarbox_history_note_idx", True), ("pillarbox_outbox_source_idx", True)]
    assert await newer.verify() == ()


class Killed(BaseException):
    pass


def kill_after(count: int) -> Callable[[str], None]:
    """Return a report that ends the process when a step outside a transaction comes to a statement."""

    def report(text: str) -> None:
        if f": statement {count} of" in text:
            raise Killed

    return report


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_step_outside_a_transaction_that_was_cut_off_is_finished_or_undone_whatever_the_next_command(
    tables: Tables, tmp_path: Path, at: int, goes_on: bool
) -> None:
    await tables.at().install()
    migrations = with_next("postgres", tmp_path, up=ONLINE, down=ONLINE_DOWN)
    newer = tables.at(migrations=migrations)
    with pytest.raises(Killed):
        await tables.at(migrations=migrations, report=kill_after(at)).upgrade()
    with pytest.raises(SchemaMixed, match="interrupted"):
        await newer.verify()
    await (newer.upgrade() if goes_on else newer.downgrade(target=LATEST))
    assert await (newer if goes_on else tables.at()).verify() == ()

    await newer.upgrade()
    with pytest.raises(Killed):
        await tables.at(migrations=migrations, report=kill_after(at)).downgrade(target=LATEST)
    with pytest.raises(SchemaMixed, match="interrupted"):
        await newer.verify()
    await (newer.downgrade(target=LATEST) if goes_on else newer.upgrade())
    assert await (tables.at() if goes_on else newer).verify() == ()


async def test_several_processes_may_run_a_step_outside_a_transaction(tables: Tables, tmp_path: Path) -> None:
    await tables.at().install()
    migrations = with_next("postgres", tmp_path, up=ONLINE, down=ONLINE_DOWN)

    await asyncio.gather(*(tables.at(migrations=migrations).upgrade() for _ in range(4)))

    assert tables.versions() == [*VERSIONS, LATEST + 1]
    assert await tables.at(migrations=migrations).verify() == ()


async def test_the_printed_sql_of_such_a_step_is_a_transaction(tables: Tables, tmp_path: Path) -> None:
    migrations = with_next("postgres", tmp_path, up=ONLINE, down=ONLINE_DOWN)
    await tables.at().install()
    (step,) = build_plan(migrations, current=LATEST, target=LATEST + 1).steps
    tables.run(f"begin; {step.sql(tables.names)} commit")
    assert await tables.at(migrations=migrations).verify() == ()


async def test_a_change_tries_again_until_a_lock_is_free(tables: Tables, tmp_path: Path) -> None:
    await tables.at().install()
    is_told = asyncio.Event()
    newer = tables.at(
        migrations=with_next("postgres", tmp_path), lock_timeout=timedelta(milliseconds=50),
        report=lambda text: is_told.set() if "trying again" in text else None,
    )  # fmt: skip
    with tables.connected() as long_transaction:
        long_transaction.execute("select from pillarbox_outbox")
        upgrade = asyncio.create_task(newer.upgrade())
        await asyncio.wait_for(is_told.wait(), 30)
        tables.run(f"set lock_timeout = '5s'; {INSERT}")  # writers go on between two tries
    await upgrade
    assert tables.versions() == [*VERSIONS, LATEST + 1]


async def test_a_downgrade_removes_the_bound_that_a_killed_upgrade_left(tables: Tables) -> None:
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    for statement in schema_module._BOUND_HISTORY:
        tables.run(tables.names.qualify(statement))
    await tables.at().downgrade(target=BEFORE_PARTITIONS - 1)
    assert tables.run("select conname from pg_constraint where conname like '%bound%'") == []


@pytest.mark.parametrize("done", range(1, len(schema_module._BOUND_HISTORY) + 1))
@pytest.mark.parametrize("is_large", [True, False])
async def test_an_upgrade_removes_the_bound_that_a_killed_one_left(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, done: int, is_large: bool
) -> None:
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    tables.run(CLOSED)
    for statement in schema_module._BOUND_HISTORY[:done]:
        tables.run(tables.names.qualify(statement))

    if is_large:
        monkeypatch.setattr(schema_module, "_LARGE", -1)
    await tables.at().upgrade()

    assert tables.run("select conname from pg_constraint where conname like '%bound%'") == []
    assert await tables.at().verify() == ()
    tables.run(CLOSED.replace("values (-7,", "values (40000000,"))


async def test_an_upgrade_removes_a_bound_that_partitions_have_already(tables: Tables) -> None:
    await tables.at().install()
    tables.run("alter table pillarbox_history add constraint pillarbox_history_bound_chk check (id < 9)")

    await tables.at().upgrade()

    assert await tables.at().verify() == ()


KILLED = """
import asyncio, sys
from pillarbox.message import Names
from pillarbox.stores.postgres import schema
from pillarbox.stores.urls import parse_store_url

schema._LARGE = -1
asyncio.run(schema.PostgresSchema(parse_store_url(sys.argv[1]), names=Names(sys.argv[2])).upgrade())
"""


async def test_an_upgrade_that_is_killed_between_two_steps_is_healed_by_the_next(tables: Tables) -> None:
    await tables.at().upgrade(target=BEFORE_PARTITIONS)
    tables.run(CLOSED)
    schema = tables.names.schema or "public"
    bound = f"""select count(*) from pg_constraint where conname like '%bound%' and convalidated
                   and connamespace = '{schema}'::regnamespace"""
    with tables.connected() as reader:
        reader.execute("lock table pillarbox_schema in share mode")  # its record waits, and so does its commit
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, tables.url, schema)
        while tables.run(bound) == [(0,)]:
            assert process.returncode is None
            await asyncio.sleep(0.02)
        await end_process(process)
    assert tables.run(bound) == [(1,)]

    await tables.at().upgrade()

    assert tables.run(bound) == [(0,)]
    assert await tables.at().verify() == ()
