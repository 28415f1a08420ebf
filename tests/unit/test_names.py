"""Names of tables and destinations: validated, then quoted."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import ConfigError
from pillarbox.message import SKIPPED_DESTINATION, TABLES, Names, check_destination


def test_default_names() -> None:
    names = Names()
    assert names.table("outbox") == '"pillarbox_outbox"'
    assert names.bare("outbox_late_idx") == "pillarbox_outbox_late_idx"


def test_a_schema_and_a_prefix_of_ones_own() -> None:
    names = Names("mail", "mb_")
    assert names.table("outbox") == '"mail"."mb_outbox"'
    assert names.qualify("create index pillarbox_outbox_late_idx on pillarbox_outbox (tx)") == (
        'create index "mb_outbox_late_idx" on "mail"."mb_outbox" (tx)'
    )


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_qualified(table: str) -> None:
    assert Names("mail", "mb_").qualify(f"select from pillarbox_{table};") == f'select from "mail"."mb_{table}";'


def test_words_that_only_contain_the_name_stay() -> None:
    assert (
        Names("mail", "mb_").qualify("notify pillarbox; mypillarbox_outbox") == "notify pillarbox; mypillarbox_outbox"
    )


@pytest.mark.parametrize(
    "bad", ["", "Upper", "1st", "with space", 'quo"te', "semi;colon", "dash-ed", "ünder", "a" * 46, "line\n", "pg\x00"]
)
def test_bad_identifiers_are_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        Names(bad)
    with pytest.raises(ConfigError, match="table prefix"):
        Names(None, bad)


def test_the_longest_prefix_still_leaves_room_for_every_index() -> None:
    names = Names(None, "p" * 45)
    assert len(names.bare("outbox_blocked_idx")) == 63


@given(st.from_regex(r"[a-z_][a-z0-9_]{0,44}", fullmatch=True))
def test_what_is_accepted_is_an_identifier_in_sql(prefix: str) -> None:
    with sqlite3.connect(":memory:") as database:
        database.execute(f"create table {Names(None, prefix).table('outbox')} (id)")
        (name,) = database.execute("select name from sqlite_master").fetchone()
    database.close()
    assert name == f"{prefix}outbox"


@pytest.mark.parametrize("good", ["billing", "B2", "eu-west.orders_1", "a" * 100, SKIPPED_DESTINATION])
def test_good_destinations(good: str) -> None:
    assert check_destination(good) == good


@pytest.mark.parametrize("bad", ["", "1st", "_hidden", "with space", "a" * 101, "ö", "a\n", "a/b", "a:b"])
def test_bad_destinations(bad: str) -> None:
    with pytest.raises(ConfigError, match="not usable"):
        check_destination(bad)


def test_an_index_is_dropped_in_the_schema_of_its_table() -> None:
    names = Names("mail", "mb_")
    for words in ("drop index", "DROP INDEX concurrently", "drop index if exists"):
        assert names.qualify(f"{words} pillarbox_outbox_late_idx;") == f'{words} "mail"."mb_outbox_late_idx";'
    assert names.qualify("drop index pillarbox_outbox_late_idx on pillarbox_outbox", quote="`") == (
        "drop index `mb_outbox_late_idx` on `mail`.`mb_outbox`"
    )
