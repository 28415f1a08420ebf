"""Numbered versions and the way between them."""

from __future__ import annotations

import pytest

from pillarbox.errors import ConfigError, SchemaMissing, SchemaNewer, SchemaOutdated
from pillarbox.message import Names
from pillarbox.stores.mariadb.schema import _to_temporary
from pillarbox.stores.migrations import (
    Migration,
    build_plan,
    build_script,
    check_version,
    explain_missing_table,
    latest_version,
    load_migrations,
    parse_migrations,
    plan_downgrade,
    plan_install,
    plan_upgrade,
    split_script,
)
from pillarbox.stores.sqlite.schema import split_statements

THREE = tuple(Migration(n, f"step{n}", f"up {n};", f"down {n};") for n in (1, 2, 3))


def files(*names: str) -> dict[str, str]:
    return {f"{name}.{way}.sql": f"{way} {name}" for name in names for way in ("up", "down")}


def scripts(current: int, target: int) -> list[str]:
    return [step.script for step in build_plan(THREE, current=current, target=target).steps]


def test_files_become_versions_in_order_whatever_order_they_come_in() -> None:
    texts = dict(reversed(files("0001_initial", "0002_more").items()))

    assert parse_migrations(texts) == (
        Migration(1, "initial", "up 0001_initial", "down 0001_initial"),
        Migration(2, "more", "up 0002_more", "down 0002_more"),
    )


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (files("0001_initial", "0003_more"), "no migration 0002 before 0003"),
        (files("0002_initial"), "no migration 0001 before 0002"),
        (files("0001_initial", "0001_other"), "Two migrations have the number 0001"),
        ({"0001_initial.up.sql": ""}, "0001_initial has no down script"),
        ({"0001_initial.down.sql": ""}, "0001_initial has no up script"),
        ({"1_initial.up.sql": ""}, "'1_initial.up.sql' is not named like"),
    ],
)
def test_gaps_twins_and_halves_are_refused(texts: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_migrations(texts)


def test_up_runs_each_version_after_the_current_one_and_down_the_same_backwards() -> None:
    assert scripts(0, 3) == ["up 1;", "up 2;", "up 3;"]
    assert scripts(1, 2) == ["up 2;"]
    assert scripts(3, 1) == ["down 3;", "down 2;"]
    assert scripts(2, 0) == ["down 2;", "down 1;"]
    assert scripts(2, 2) == []


def test_each_step_keeps_the_version_table_true_under_the_configured_names() -> None:
    names = Names("mail", "pb_")
    (up,) = build_plan(THREE, current=1, target=2).steps
    down, first = build_plan(THREE, current=2, target=0).steps

    assert up.sql(names) == 'up 2;\n\ninsert into "mail"."pb_schema" (version) values (2);'
    assert down.sql(names) == 'down 2;\n\ndelete from "mail"."pb_schema" where version = 2;'
    assert first.sql(names) == "down 1;"


def test_a_target_that_does_not_exist_is_refused() -> None:
    for target in (-1, 4):
        with pytest.raises(ConfigError, match=f"no schema version {target}; this release knows 0 .* to 3"):
            build_plan(THREE, current=1, target=target)


def test_nothing_is_planned_for_a_schema_from_the_future() -> None:
    for target in (0, 3):
        with pytest.raises(SchemaNewer):
            build_plan(THREE, current=4, target=target)


def test_install_starts_from_nothing_and_leaves_older_tables_alone() -> None:
    assert len(plan_install(THREE, current=0).steps) == 3
    assert plan_install(THREE, current=3).steps == []
    with pytest.raises(SchemaOutdated, match="schema upgrade"):
        plan_install(THREE, current=2)
    with pytest.raises(SchemaNewer):
        plan_install(THREE, current=4)


def test_upgrade_goes_up_only_and_downgrade_down_only() -> None:
    assert plan_upgrade(THREE, current=1).target == 3
    assert plan_upgrade(THREE, current=0, target=2).target == 2
    assert plan_downgrade(THREE, current=3, target=1).target == 1
    with pytest.raises(ConfigError, match="use `pillarbox schema downgrade`"):
        plan_upgrade(THREE, current=3, target=1)
    with pytest.raises(ConfigError, match="use `pillarbox schema upgrade`"):
        plan_downgrade(THREE, current=1, target=2)


@pytest.mark.parametrize(
    ("current", "error", "advice"),
    [
        (None, SchemaMissing, "schema install"),
        (0, SchemaMissing, "schema install"),
        (1, SchemaOutdated, "schema upgrade"),
        (3, SchemaNewer, "upgrade the pillarbox package"),
    ],
)
def test_a_version_that_does_not_fit_says_what_to_do(current: int | None, error: type[Exception], advice: str) -> None:
    with pytest.raises(error, match=advice):
        check_version(current, latest=2)
    check_version(2, latest=2)


def test_every_store_has_the_same_number_of_versions() -> None:
    assert latest_version("postgresql") == latest_version("sqlite") == len(load_migrations("sqlite"))


def test_rules_and_temporary_tables_are_such_as_mysql_takes() -> None:
    """It takes no CASE for a check, and no two checks of one name in a database, temporary tables included."""
    script = " ".join(build_script("mysql", names=Names()).lower().split())
    temporary = [_to_temporary(statement) or "" for statement in split_script(build_script("mysql", names=Names()))]

    assert "check ( case" not in script
    assert "check (case" not in script
    assert any("add check (" in statement for statement in temporary)
    assert not any("constraint pillarbox" in statement.lower() for statement in temporary)


def test_a_script_is_split_where_statements_end_and_nowhere_else() -> None:
    script = """
        -- a comment; with a semicolon
        create table a (x text default ';'); create table b (y); /* another; one */
        create trigger t after insert on a begin
            insert into b values (1); insert into b values (2);
        end;
        insert into a values ('it''s; fine');
        insert into b values (3) -- the end;
    """

    first, second, third, fourth, fifth = split_statements(script)

    assert first.endswith("(x text default ';');")
    assert second == "create table b (y);"
    assert third.endswith("end;")
    assert fourth == "insert into a values ('it''s; fine');"
    assert fifth.startswith("insert into b values (3)")
    assert list(split_statements("select 1; -- nothing; more\n/* ; */ ")) == ["select 1;"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('relation "pillarbox_schema" does not exist', "schema install"),
        ("no such table: app_schema", "schema install"),
        ("Table 'shop.pillarbox_schema' doesn't exist", "schema install"),
        ('relation "pillarbox_rollup" does not exist', "schema verify"),
        ("no such table: schema_journal", "schema verify"),
        ("Table 'schema.pillarbox_outbox' doesn't exist", "schema verify"),
    ],
)
def test_the_advice_for_a_missing_table_fits_what_is_missing(text: str, advice: str) -> None:
    error = str(explain_missing_table(text, where=" in shop.db"))
    assert f"missing in shop.db ({text})" in error
    assert f"`pillarbox {advice}`" in error
    assert ("schema install" in error) == (advice == "schema install")
