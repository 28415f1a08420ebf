"""Which releases may use which tables."""

from __future__ import annotations

import pytest

from pillarbox.errors import ConfigError, SchemaMissing, SchemaNewer, SchemaOutdated
from pillarbox.message import Names
from pillarbox.stores.compatibility import (
    FIRST_DECLARED,
    Declaration,
    SchemaVersion,
    check_compatibility,
    parse_declaration,
)
from pillarbox.stores.migrations import build_plan, load_migrations, parse_migrations, plan_nothing
from pillarbox.stores.sql import Statements, choose_variants, parse_statements


def test_a_migration_declares_in_its_first_lines() -> None:
    script = (
        "-- More.\n-- readable from: 9\n-- writable from: 10\n-- runs on: 9\n-- transaction: none\n\nalter table x;"
    )
    assert parse_declaration("0010_more", 10, script) == Declaration(
        readable_from=9, writable_from=10, runs_on=9, in_transaction=False
    )


def test_a_comment_further_below_declares_nothing() -> None:
    assert parse_declaration("0010_more", 10, "alter table x;\n-- readable from: 9\n") == Declaration()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-- readable from: 11", "a version from 1 to 10"),
        ("-- readable from: 0", "a version from 1 to 10"),
        ("-- runs on: nine", "a version from 1 to 10"),
        ("-- runs on: 9\n-- runs on: 8", "twice"),
        ("-- transaction: one", "write `none`"),
        ("-- writable from: 8\n-- readable from: 9", "reads them too"),
        ("-- writable from: 9", "reads them too"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_declaration("0010_more", 10, f"{line}\nalter table x;")


@pytest.mark.parametrize(
    ("found", "writes", "error"),
    [
        (SchemaVersion(0, 0, 0), True, SchemaMissing),
        (SchemaVersion(7, 7, 7), True, SchemaOutdated),
        (SchemaVersion(8, 8, 8), True, None),
        (SchemaVersion(9, 9, 9), True, None),
        (SchemaVersion(10, 9, 9), True, None),
        (SchemaVersion(11, 9, 9), True, None),
        (SchemaVersion(10, 9, 10), True, SchemaNewer),
        (SchemaVersion(10, 9, 10), False, None),
        (SchemaVersion(10, 10, 10), False, SchemaNewer),
        (SchemaVersion(10, 10, 10), True, SchemaNewer),
    ],
)
def test_a_release_of_version_9_that_runs_on_8(
    found: SchemaVersion, writes: bool, error: type[Exception] | None
) -> None:
    if error is None:
        check_compatibility(found, latest=9, runs_on=8, writes=writes)
        return
    with pytest.raises(error):
        check_compatibility(found, latest=9, runs_on=8, writes=writes)


def test_a_release_that_may_only_read_is_told_so() -> None:
    with pytest.raises(SchemaNewer, match="made for version 9, may read but not write; upgrade the pillarbox package"):
        check_compatibility(SchemaVersion(10, 9, 10), latest=9, runs_on=9, writes=True)


def test_without_a_declaration_only_the_version_itself_fits() -> None:
    assert SchemaVersion.build(8) == SchemaVersion(8, 8, 8)
    assert SchemaVersion.build(None) == SchemaVersion(0, 0, 0)
    with pytest.raises(SchemaOutdated):
        check_compatibility(SchemaVersion.build(8), latest=9, runs_on=None, writes=True)


@pytest.mark.parametrize("scheme", ["postgresql", "sqlite", "mysql"])
def test_every_version_since_the_first_that_can_declares_who_may_use_it(scheme: str) -> None:
    for migration in load_migrations(scheme):
        declared = migration.declared
        says = (declared.readable_from, declared.writable_from, declared.runs_on)
        assert all(says) is (migration.version >= FIRST_DECLARED), migration.name


def test_all_stores_declare_alike() -> None:
    each = [[one.declared for one in load_migrations(scheme)] for scheme in ("postgresql", "sqlite", "mysql")]
    readable = [[(one.readable_from, one.writable_from, one.runs_on) for one in declared] for declared in each]
    assert readable[0] == readable[1] == readable[2]


def test_the_record_of_a_version_keeps_what_it_declares() -> None:
    migrations = parse_migrations(
        {
            "0001_one.up.sql": "a;", "0001_one.down.sql": "b;",
            "0002_two.up.sql": "-- readable from: 1\n-- writable from: 2\nc;", "0002_two.down.sql": "d;",
        }
    )  # fmt: skip
    plan = build_plan(migrations, current=0, target=2)
    assert [step.record for step in plan.steps] == [
        "insert into pillarbox_schema (version) values (1);",
        "insert into pillarbox_schema (version, readable_from, writable_from) values (2, 1, 2);",
    ]


def test_an_older_release_changes_nothing_about_tables_that_it_may_use() -> None:
    migrations = load_migrations("sqlite")
    latest = len(migrations)
    plan = plan_nothing(migrations, SchemaVersion(latest + 1, latest, latest))
    assert plan is not None
    assert plan.steps == []
    assert plan_nothing(migrations, SchemaVersion(latest + 1, latest, latest + 1)) is None
    assert plan_nothing(migrations, SchemaVersion(latest, latest, latest)) is None


def test_a_statement_is_chosen_by_the_version_of_the_tables() -> None:
    statements = parse_statements(
        ["-- name: claim\nold\n\n-- name: claim since 10\nnew\n\n-- name: renew since 11\nlater\n\n-- name: read\nr\n"]
    )
    assert choose_variants(statements, version=9) == {"claim": "old\n", "read": "r\n"}
    assert choose_variants(statements, version=10) == {"claim": "new\n", "read": "r\n"}
    assert choose_variants(statements, version=None) == {"claim": "new\n", "renew": "later\n", "read": "r\n"}


def test_statements_follow_the_version_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"claim": "old pillarbox_claim", "claim since 10": "new pillarbox_claim"}
    monkeypatch.setattr("pillarbox.stores.sql._read_package", lambda _: texts)
    statements = Statements("made.up", Names(prefix="p_"))
    assert statements["claim"] == 'new "p_claim"'
    statements.use_version(9)
    assert statements["claim"] == 'old "p_claim"'
    statements.use_version(10)
    assert statements["claim"] == 'new "p_claim"'
