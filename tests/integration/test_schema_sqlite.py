"""Installing, changing and checking the tables of an SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pillarbox.errors import ConfigError, SchemaMissing, SchemaMixed, SchemaNewer, SchemaOutdated, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.migrations import Migration, build_script, latest_version, load_migrations
from pillarbox.stores.sqlite.schema import SqliteSchema
from pillarbox.stores.urls import parse_store_url
from tests.support.next_version import with_next

LATEST = latest_version("sqlite")
VERSIONS = [(version,) for version in range(1, LATEST + 1)]
INSERT = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, payload, content_type, source,
                                  correlation_id, event_time)
    values ('m1', 'shop', 3, 'event', 'orders.placed', 'orders', x'00ff', 'application/json', '/shop', 'c1', 1)
"""


def tables(path: Path, *, prefix: str = "pillarbox_", migrations: Sequence[Migration] | None = None) -> SqliteSchema:
    return SqliteSchema(parse_store_url(f"sqlite:///{path}"), names=Names(prefix=prefix), migrations=migrations)


def run(path: Path, *statements: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [row for statement in statements for row in connection.execute(statement).fetchall()]


async def test_install_makes_the_file_and_repeating_it_changes_nothing(tmp_sqlite: Path) -> None:
    first = await tables(tmp_sqlite).install()
    again = await tables(tmp_sqlite).install()

    assert [(first.current, first.target), (again.current, again.target)] == [(0, LATEST), (LATEST, LATEST)]
    assert run(tmp_sqlite, "select version from pillarbox_schema order by 1") == VERSIONS
    assert await tables(tmp_sqlite).verify() == ()


async def test_eight_installers_at_once_all_succeed_and_record_one_version(tmp_sqlite: Path) -> None:
    plans = await asyncio.gather(*(tables(tmp_sqlite).install() for _ in range(8)))

    assert sorted(plan.current for plan in plans) == [0, *[LATEST] * 7]
    assert run(tmp_sqlite, "select version from pillarbox_schema order by 1") == VERSIONS


class Meeting(tuple[Migration, ...]):
    """Migrations at whose sight an installer, having read the version, waits a moment for another to get there too."""

    barrier = threading.Barrier(2)

    def __len__(self) -> int:
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(timeout=0.5)
        return super().__len__()


async def test_no_two_installers_are_between_reading_the_version_and_writing(tmp_sqlite: Path) -> None:
    migrations = Meeting(load_migrations("sqlite"))

    await asyncio.gather(*(tables(tmp_sqlite, migrations=migrations).install() for _ in range(2)))

    assert Meeting.barrier.broken
    assert run(tmp_sqlite, "select version from pillarbox_schema order by 1") == VERSIONS


async def test_the_next_version_and_back_with_messages_in_the_tables(tmp_sqlite: Path, tmp_path: Path) -> None:
    migrations = with_next("sqlite", tmp_path)
    await tables(tmp_sqlite).install()
    run(tmp_sqlite, INSERT)
    before = run(tmp_sqlite, "select * from pillarbox_outbox")
    newer = tables(tmp_sqlite, migrations=migrations)
    with pytest.raises(SchemaOutdated):
        await newer.verify()
    with pytest.raises(SchemaOutdated):
        await newer.install()

    await newer.upgrade()

    assert run(tmp_sqlite, "select message_id, priority from pillarbox_outbox") == [("m1", 7)]
    assert run(tmp_sqlite, "select version from pillarbox_schema order by 1") == [*VERSIONS, (LATEST + 1,)]
    assert await newer.verify() == ()
    with pytest.raises(SchemaNewer, match=f"version {LATEST + 1} and this release knows {LATEST}"):
        await tables(tmp_sqlite).upgrade()

    await newer.downgrade(target=LATEST)

    assert run(tmp_sqlite, "select * from pillarbox_outbox") == before
    assert await tables(tmp_sqlite).verify() == ()


async def test_a_version_that_fails_half_way_leaves_no_trace(tmp_sqlite: Path, tmp_path: Path) -> None:
    broken = "alter table pillarbox_outbox add column priority integer;\nalter table no_such_table add column x;\n"
    await tables(tmp_sqlite).install()

    with pytest.raises(SchemaMixed, match="no such table: no_such_table"):
        await tables(tmp_sqlite, migrations=with_next("sqlite", tmp_path, up=broken)).upgrade()

    assert await tables(tmp_sqlite).verify() == ()
    assert await tables(tmp_sqlite).version() == LATEST


async def test_version_zero_removes_everything_and_nothing_else(tmp_sqlite: Path) -> None:
    run(tmp_sqlite, "create table shop (id)")
    await tables(tmp_sqlite).install()
    await tables(tmp_sqlite, prefix="other_").install()

    await tables(tmp_sqlite).downgrade(target=0)

    left = {name for (name,) in run(tmp_sqlite, "select name from sqlite_master where name like 'pillarbox%'")}
    assert left == set()
    assert run(tmp_sqlite, "select count(*) from shop, other_outbox") == [(0,)]
    assert await tables(tmp_sqlite).version() == 0


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("drop index pillarbox_outbox_due_idx", ["missing: index pillarbox_outbox_due_idx on pillarbox_outbox"]),
        ("drop view pillarbox_messages", ["missing: view pillarbox_messages"]),
        ("drop table pillarbox_lane", ["missing: table pillarbox_lane"]),
        ("create index mine on pillarbox_inbox (source)", ["unexpected: index mine on pillarbox_inbox"]),
        ("alter table pillarbox_relay add column extra text", ["unexpected: column pillarbox_relay.extra"]),
        (
            "create trigger mine after insert on pillarbox_inbox begin select 1; end",
            ["unexpected: trigger mine on pillarbox_inbox"],
        ),
        (
            "drop table pillarbox_destination; create table pillarbox_destination (destination text not null"
            " primary key, paused_by text not null, paused_at text not null, reason text) without rowid",
            [
                "different: column pillarbox_destination.paused_at is text not null, should be integer not null",
                "different: column pillarbox_destination.reason is text, should be text not null",
            ],
        ),
        (
            "drop table pillarbox_lane; create table pillarbox_lane (destination text not null, partition integer"
            " not null, relay_id text, epoch integer not null default 0, revision integer not null default 0,"
            " primary key (destination, partition))",
            [
                "missing: constraint on pillarbox_lane: check ( partition between 0 and 63 )",
                "different: table pillarbox_lane is table, should be table without rowid",
            ],
        ),
    ],
)
async def test_verify_lists_what_is_not_as_it_should_be(tmp_sqlite: Path, damage: str, told: list[str]) -> None:
    await tables(tmp_sqlite).install()
    statements = [damage] if "trigger" in damage else damage.split("; ")
    run(tmp_sqlite, "pragma legacy_alter_table = on", *statements)

    assert [str(difference) for difference in await tables(tmp_sqlite).verify()] == told


async def test_verify_does_not_mind_how_the_sql_was_written(tmp_sqlite: Path) -> None:
    await tables(tmp_sqlite).install()
    run(
        tmp_sqlite,
        "drop index pillarbox_inbox_status_idx",
        'CREATE INDEX "pillarbox_inbox_status_idx" ON "pillarbox_inbox" ("status","status_at")',
    )

    assert await tables(tmp_sqlite).verify() == ()


async def test_tables_without_a_recorded_version_are_a_mixture(tmp_sqlite: Path) -> None:
    await tables(tmp_sqlite).install()
    run(tmp_sqlite, "delete from pillarbox_schema")
    with pytest.raises(SchemaMixed, match="records no version"):
        await tables(tmp_sqlite).verify()

    run(tmp_sqlite, "drop table pillarbox_schema")
    with pytest.raises(SchemaMixed, match="already exists"):
        await tables(tmp_sqlite).install()


async def test_only_installing_makes_a_file(tmp_sqlite: Path) -> None:
    for call in (tables(tmp_sqlite).verify(), tables(tmp_sqlite).version(), tables(tmp_sqlite).downgrade(target=0)):
        with pytest.raises(SchemaMissing, match="schema install"):
            await call

    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        sqlite3.connect(f"{tmp_sqlite.as_uri()}?mode=rw", uri=True)


async def test_what_cannot_be_done_on_sqlite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SQLite has no schemas"):
        open_schema(parse_store_url("sqlite:///x.db"), names=Names("mail"))
    with pytest.raises(ConfigError, match="names no file"):
        open_schema(parse_store_url("sqlite://"), names=Names())
    with pytest.raises(StoreUnavailable):
        await tables(tmp_path / "no" / "such" / "folder.db").install()
    (tmp_path / "text.db").write_text("this is a letter, not a database" * 99)
    with pytest.raises(ConfigError, match="not an SQLite database"):
        await tables(tmp_path / "text.db").install()


async def test_the_printed_sql_does_what_the_commands_do(tmp_sqlite: Path) -> None:
    names = Names(prefix="mine_")
    with closing(sqlite3.connect(tmp_sqlite)) as connection:
        connection.executescript(build_script("sqlite", names=names))
        assert await tables(tmp_sqlite, prefix="mine_").verify() == ()

        connection.executescript(build_script("sqlite", names=names, down=True))
        assert connection.execute("select count(*) from sqlite_master where name like 'mine%'").fetchone() == (0,)


def read_modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    before = os.umask(0)
    try:
        await open_schema(f"sqlite:///{path}").install()
        store = open_store(f"sqlite:///{path}")
        await store.open()
        files = read_modes(tmp_path)
        await store.close()
    finally:
        os.umask(before)

    assert files == {"shop.db": 0o600, "shop.db-wal": 0o600, "shop.db-shm": 0o600}


async def test_rights_that_somebody_gave_stay(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.touch(mode=0o660)
    path.chmod(0o660)

    await open_schema(f"sqlite:///{path}").install()

    assert read_modes(tmp_path)["shop.db"] == 0o660
