"""Installing, changing and checking the tables of a MariaDB database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pillarbox.errors import SchemaMissing, SchemaNewer, SchemaOutdated, StoreUnavailable
from pillarbox.message import Names
from pillarbox.stores.mariadb.schema import MariadbSchema, _parse_table
from pillarbox.stores.migrations import Migration, build_script, latest_version, split_script
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected
from tests.support.next_version import with_next

LATEST = latest_version("mysql")
VERSIONS = [(version,) for version in range(1, LATEST + 1)]
INSERT = """
    insert into pillarbox_outbox (message_id, destination, `partition`, kind, type, topic, payload, content_type,
                                  source, correlation_id, event_time)
    values ('m1', 'shop', 3, 'event', 'orders.placed', 'orders', x'00ff', 'application/json', '/shop', 'c1', 1)
"""
DOWN = """
alter table pillarbox_outbox drop index pillarbox_outbox_priority_idx;
alter table pillarbox_outbox drop column priority;
"""


def tables(url: str, *, names: Names | None = None, migrations: Sequence[Migration] | None = None) -> MariadbSchema:
    return MariadbSchema(parse_store_url(url), names=names or Names(), migrations=migrations)


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor.execute(statement)
            rows += cursor.fetchall()
        return rows


async def test_install_makes_the_tables_and_repeating_it_changes_nothing(mariadb_url: str) -> None:
    first = await tables(mariadb_url).install()
    again = await tables(mariadb_url).install()

    assert [(first.current, first.target), (again.current, again.target)] == [(0, LATEST), (LATEST, LATEST)]
    assert run(mariadb_url, "select version from pillarbox_schema order by 1") == VERSIONS
    assert run(mariadb_url, "select count(*), min(slot), max(slot) from pillarbox_slot") == [(256, 0, 255)]
    assert await tables(mariadb_url).verify() == ()


async def test_installers_at_once_all_succeed_and_record_one_version(mariadb_url: str) -> None:
    plans = await asyncio.gather(*(tables(mariadb_url).install() for _ in range(4)))

    assert sorted(plan.current for plan in plans) == [0, LATEST, LATEST, LATEST]
    assert run(mariadb_url, "select version from pillarbox_schema order by 1") == VERSIONS


async def test_an_installation_that_was_cut_off_is_finished_by_the_next(mariadb_url: str) -> None:
    """MySQL has no transaction around it: whatever statement was the last, the next run goes on from there."""
    whole = list(split_script(build_script("mysql", names=Names())))
    for cut in (1, len(whole) // 2, len(whole) - 1):
        run(mariadb_url, *whole[:cut])
        assert await tables(mariadb_url).version() < LATEST

        await tables(mariadb_url).upgrade()

        assert await tables(mariadb_url).verify() == ()
        await tables(mariadb_url).downgrade(target=0)


async def test_a_database_and_a_prefix_of_its_own(mariadb_url: str) -> None:
    database = f"{urlsplit(mariadb_url).path[1:]}_own"[-40:].lstrip("0123456789")
    names = Names(database, "mail_")
    try:
        await tables(mariadb_url, names=names).install()

        assert await tables(mariadb_url, names=names).verify() == ()
        assert run(mariadb_url, "show tables") == []
        assert run(mariadb_url, f"select version from `{database}`.mail_schema order by 1") == VERSIONS
    finally:
        run(mariadb_url, f"drop database if exists `{database}`")


async def test_the_next_version_and_back_with_messages_in_the_tables(mariadb_url: str, tmp_path: Path) -> None:
    migrations = with_next("mariadb", tmp_path, down=DOWN)
    await tables(mariadb_url).install()
    run(mariadb_url, INSERT)
    newer = tables(mariadb_url, migrations=migrations)
    with pytest.raises(SchemaOutdated):
        await newer.verify()
    with pytest.raises(SchemaOutdated):
        await newer.install()

    await newer.upgrade()

    assert run(mariadb_url, "select message_id, priority from pillarbox_outbox") == [("m1", 7)]
    assert run(mariadb_url, "select version from pillarbox_schema order by 1") == [*VERSIONS, (LATEST + 1,)]
    told = [str(difference) for difference in await newer.verify()]
    assert [line for line in told if "view" not in line] == []
    with pytest.raises(SchemaNewer, match=f"version {LATEST + 1} and this release knows {LATEST}"):
        await tables(mariadb_url).upgrade()

    await newer.downgrade(target=LATEST)

    assert run(mariadb_url, "select message_id from pillarbox_outbox") == [("m1",)]
    assert await tables(mariadb_url).verify() == ()


async def test_version_zero_removes_everything_and_nothing_else(mariadb_url: str) -> None:
    run(mariadb_url, "create table shop (id integer)")
    await tables(mariadb_url).install()
    await tables(mariadb_url, names=Names(prefix="other_")).install()

    await tables(mariadb_url).downgrade(target=0)

    assert run(mariadb_url, "show tables like 'pillarbox%'") == []
    assert run(mariadb_url, "select count(*) from shop cross join other_outbox") == [(0,)]
    assert await tables(mariadb_url).version() == 0
    with pytest.raises(SchemaMissing):
        await tables(mariadb_url).verify()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "drop index pillarbox_outbox_blocked_idx on pillarbox_outbox",
            ["missing: index pillarbox_outbox_blocked_idx on pillarbox_outbox"],
        ),
        ("drop view pillarbox_messages", ["missing: view pillarbox_messages"]),
        ("drop table pillarbox_lane", ["missing: table pillarbox_lane"]),
        ("create index mine on pillarbox_inbox (status)", ["unexpected: index mine on pillarbox_inbox"]),
        ("alter table pillarbox_relay add column extra text", ["unexpected: column pillarbox_relay.extra"]),
    ],
)
async def test_verify_lists_what_is_not_as_it_should_be(mariadb_url: str, damage: str, told: list[str]) -> None:
    await tables(mariadb_url).install()
    run(mariadb_url, damage)

    assert [str(difference) for difference in await tables(mariadb_url).verify()] == told


async def test_verify_sees_other_types_and_engines(mariadb_url: str) -> None:
    await tables(mariadb_url).install()
    run(
        mariadb_url,
        "alter table pillarbox_relay modify service varchar(20) not null",
        "alter table pillarbox_slot engine = MyISAM",
    )

    told = [str(difference) for difference in await tables(mariadb_url).verify()]

    assert any(line.startswith("different: column pillarbox_relay.service is varchar(20)") for line in told)
    assert any(line.startswith("different: table pillarbox_slot is ENGINE=MyISAM") for line in told)


async def test_verify_is_content_after_a_change_by_a_session_with_another_character_set(mariadb_url: str) -> None:
    """MySQL writes texts of a check anew at every change, with the character set of column or session before them."""
    await tables(mariadb_url).install()
    run(
        mariadb_url,
        "set names latin1",
        "alter table pillarbox_outbox add column extra integer",
        "alter table pillarbox_outbox drop column extra",
        "alter table pillarbox_outbox stats_persistent = 1",
    )

    assert await tables(mariadb_url).verify() == ()


def test_texts_are_compared_without_the_character_set_before_them() -> None:
    lines = [
        "CREATE TABLE `t` (",
        "  `at` bigint NOT NULL DEFAULT (timestampdiff(MICROSECOND,_utf8mb4'1970-01-01',utc_timestamp(6))),",
        "  CONSTRAINT `t_chk_1` CHECK ((`waits` in (_ascii'held',_latin1'it_''s')))",
        ") ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin STATS_PERSISTENT=1",
    ]

    assert _parse_table("t", "\n".join(lines)) == {
        "table t": "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
        "column t.at": "bigint NOT NULL DEFAULT (timestampdiff(MICROSECOND,'1970-01-01',utc_timestamp(6)))",
        "constraint on t: CHECK ((`waits` in ('held','it_''s')))": "valid",
    }


async def test_verify_leaves_no_trace(mariadb_url: str) -> None:
    await tables(mariadb_url).install()
    run(mariadb_url, INSERT)
    before = run(mariadb_url, "show full tables", "select * from pillarbox_outbox")

    await tables(mariadb_url).verify()

    assert run(mariadb_url, "show full tables", "select * from pillarbox_outbox") == before


async def test_who_cannot_be_reached_or_does_not_know_us_is_told_without_the_password(mariadb_url: str) -> None:
    parts = urlsplit(mariadb_url)
    for place, said in ((f"{parts.hostname}:1", "cannot be reached"), (f"{parts.hostname}:{parts.port}", "login")):
        with pytest.raises(StoreUnavailable, match=said) as refused:
            await tables(f"mysql://nobody:canary@{place}/x").install()
        assert "canary" not in str(refused.value)
    with pytest.raises(StoreUnavailable, match="create it or correct the URL"):
        await tables(parts._replace(path="/no_such_database").geturl()).install()


async def test_a_change_tries_again_until_the_tables_are_free(mariadb_url: str, tmp_path: Path) -> None:
    await tables(mariadb_url).install()
    told: list[str] = []
    newer = MariadbSchema(
        parse_store_url(mariadb_url), names=Names(), migrations=with_next("mariadb", tmp_path, down=DOWN),
        lock_timeout=timedelta(seconds=1), report=told.append,
    )  # fmt: skip
    with closing(connected(mariadb_url, autocommit=False)) as long_transaction:
        with long_transaction.cursor() as cursor:
            cursor.execute("select count(*) from pillarbox_outbox")
        upgrade = asyncio.create_task(newer.upgrade())
        while not any("trying again" in text for text in told):
            assert not upgrade.done()
            await asyncio.sleep(0.05)
        long_transaction.rollback()
        await upgrade

    assert run(mariadb_url, "select max(version) from pillarbox_schema") == [(LATEST + 1,)]


async def test_a_change_gives_up_when_the_tables_stay_in_use(mariadb_url: str, tmp_path: Path) -> None:
    await tables(mariadb_url).install()
    newer = MariadbSchema(
        parse_store_url(mariadb_url), names=Names(), migrations=with_next("mariadb", tmp_path, down=DOWN),
        lock_timeout=timedelta(seconds=1), patience=timedelta(0),
    )  # fmt: skip
    with closing(connected(mariadb_url, autocommit=False)) as long_transaction:
        with long_transaction.cursor() as cursor:
            cursor.execute("select count(*) from pillarbox_outbox")
        with pytest.raises(StoreUnavailable, match="Lock wait timeout"):
            await newer.upgrade()
    assert run(mariadb_url, "select max(version) from pillarbox_schema") == [(LATEST,)]
