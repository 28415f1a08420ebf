"""`pillarbox schema …` against real databases."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox.stores.migrations import latest_version
from tests.support.cli.program import PROGRAM, RunResult, environment, pillarbox

LATEST = latest_version("sqlite")


class Place:
    """Where the tables go in one test, and how to reach them past the program."""

    def __init__(self, options: list[str], execute: Callable[[str], list[Any]]) -> None:
        self.options = options
        self.execute = execute

    def schema(self, command: str, *arguments: str) -> RunResult:
        return pillarbox("schema", command, *arguments, *self.options)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "sqlite":
        return _sqlite(request.getfixturevalue("tmp_sqlite"))
    return _postgresql(request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema"))


def _sqlite(path: Path) -> Place:
    def execute(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return Place(["--store", f"sqlite:///{path}"], execute)


def _postgresql(url: str, schema: str) -> Place:
    def execute(statement: str) -> list[Any]:
        with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return Place(["--store", url, "--schema", schema], execute)


def test_install_verify_and_downgrade(place: Place) -> None:
    installed, again = place.schema("install"), place.schema("install")
    verified = place.schema("verify")
    removed = place.schema("downgrade", "--to", "0", "--yes")

    assert [run.code for run in (installed, again, verified, removed)] == [0, 0, 0, 0]
    assert f"from version 0 to {LATEST}" in installed.out
    assert f"at version {LATEST} already" in again.out
    assert "as they should be" in verified.out
    assert f"from version {LATEST} to 0" in removed.out
    assert [run.err for run in (installed, again, verified, removed)] == ["", "", "", ""]
    assert place.schema("verify").code == 4


def test_upgrade_starts_from_nothing_too(place: Place) -> None:
    assert place.schema("upgrade").code == 0
    assert place.execute("select version from pillarbox_schema order by 1") == [
        (version,) for version in range(1, LATEST + 1)
    ]


@pytest.mark.parametrize("command", ["install", "upgrade"])
def test_lookups_are_made_and_dropped_on_postgresql(postgres_url: str, postgres_schema: str, command: str) -> None:
    place = _postgresql(postgres_url, postgres_schema)
    dropped, made = place.schema(command, "--no-lookups", "-o", "json"), place.schema(command, "--lookups")
    assert [dropped.code, made.code] == [0, 0]
    assert len(json.loads(dropped.out)["lookups"]) == 4
    assert "Changed indexes: pillarbox_history_message_idx, " in made.out
    assert "indexes" not in place.schema(command).out


@pytest.mark.parametrize("option", ["--lookups", "--no-lookups"])
def test_lookups_are_an_option_of_postgresql_alone(tmp_sqlite: Path, option: str) -> None:
    place = _sqlite(tmp_sqlite)
    ran = place.schema("install", option)
    assert ran.code == 2
    assert "always has its indexes for lookups" in ran.err
    assert not tmp_sqlite.exists() or tmp_sqlite.stat().st_size == 0


def test_results_as_json(place: Place) -> None:
    installed = json.loads(place.schema("install", "-o", "json").out)
    place.execute("drop index pillarbox_outbox_due_idx")
    verified = place.schema("verify", "-o", "json")

    assert {name: installed[name] for name in ("from", "to", "steps")} == {
        "from": 0,
        "to": LATEST,
        "steps": [
            "0001_initial",
            "0002_trust",
            "0003_delivery",
            "0004_labels",
            "0005_sleepers",
            "0006_history",
            "0007_dashboard",
            "0008_partitions",
            "0009_growth",
        ],
    }
    assert verified.code == 4
    assert json.loads(verified.out)["fits"] is False
    assert json.loads(verified.out)["differences"] == [
        {
            "item": "index pillarbox_outbox_due_idx on pillarbox_outbox",
            "problem": "missing",
            "expected": None,
            "found": None,
        }
    ]


def test_verify_lists_differences_one_by_one(place: Place) -> None:
    place.schema("install")
    place.execute("drop index pillarbox_outbox_due_idx")
    place.execute("drop view pillarbox_messages")

    ran = place.schema("verify")

    assert ran.code == 4
    assert ran.out.splitlines() == [
        "missing: view pillarbox_messages",
        "missing: index pillarbox_outbox_due_idx on pillarbox_outbox",
    ]
    assert "in 2 places" in ran.sentence


def test_tables_that_do_not_fit_end_with_code_four(place: Place) -> None:
    place.schema("install")
    place.execute("insert into pillarbox_schema (version) values (99)")

    for command in (["install"], ["upgrade"], ["verify"], ["downgrade", "--to", "1", "--yes"]):
        ran = place.schema(*command)
        assert (ran.code, "upgrade the pillarbox package" in ran.sentence) == (4, True)


def test_eight_programs_at_once_install_one_schema(place: Place) -> None:
    running = [
        subprocess.Popen([PROGRAM, "schema", "install", *place.options], env=environment({}), stdout=subprocess.DEVNULL)
        for _ in range(8)
    ]

    assert [program.wait(60) for program in running] == [0] * 8
    assert place.execute("select version from pillarbox_schema order by 1") == [
        (version,) for version in range(1, LATEST + 1)
    ]


def test_a_downgrade_that_nobody_can_be_asked_about_is_refused(place: Place) -> None:
    place.schema("install")

    ran = place.schema("downgrade", "--to", "0")

    assert ran.code == 2
    assert "--yes" in ran.err
    assert place.schema("verify").code == 0


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 0), ("\n", 1, 0), ("\x04", 130, 0), ("y\n", 0, 4)])
def test_a_downgrade_asks_a_person(tmp_sqlite: Path, answer: str, code: int, left: int) -> None:
    place = _sqlite(tmp_sqlite)
    place.schema("install")
    keyboard, terminal = pty.openpty()
    command = [PROGRAM, "schema", "downgrade", "--to", "0", *place.options]
    with subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({})
    ) as program:
        question = _read_to(program, b"]: ")
        os.write(keyboard, answer.encode())
        out, _ = program.communicate(timeout=30)
    os.close(keyboard)
    os.close(terminal)

    assert f"from version {LATEST} to 0? This removes every table and every message. [y/N]: ".encode() in question
    assert (program.returncode, b"from version" in out) == (code, code == 0)
    assert place.schema("verify").code == left


def _read_to(program: subprocess.Popen[bytes], end: bytes) -> bytes:
    assert program.stderr is not None
    text = b""
    while not text.endswith(end):
        byte = program.stderr.read(1)
        assert byte, text
        text += byte
    return text


def test_upgrade_and_downgrade_name_each_other(place: Place) -> None:
    place.schema("install")

    above = LATEST + 1
    assert f"no schema version {above}" in place.schema("upgrade", "--to", str(above)).sentence
    assert place.schema("downgrade", "--to", "1", "--yes").code == 0


def test_names_come_from_the_environment_and_flags_win(tmp_path: Path) -> None:
    variables = {"PILLARBOX_STORE": "sqlite:///env.db", "PILLARBOX_PREFIX": "env_", "PILLARBOX_OUTPUT": "json"}

    pillarbox("schema", "install", cwd=tmp_path, **variables)
    pillarbox("schema", "install", "--prefix", "flag_", "--store", "sqlite:///flag.db", cwd=tmp_path, **variables)

    assert _sqlite(tmp_path / "env.db").execute("select count(*) from env_outbox") == [(0,)]
    assert _sqlite(tmp_path / "flag.db").execute("select count(*) from flag_outbox") == [(0,)]


def test_printed_sql_makes_what_verify_expects(place: Place, tmp_path: Path) -> None:
    up = place.schema("sql")
    down = place.schema("sql", "--down", "--from", "0", "--to", "1")

    _execute_script(place, up.out)
    assert place.schema("verify").code == 0
    _execute_script(place, down.out)
    assert place.schema("verify").code == 4
    assert json.loads(place.schema("sql", "-o", "json").out) == {"sql": up.out}


def _execute_script(place: Place, script: str) -> None:
    store = place.options[1]
    if store.startswith("sqlite:///"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
        return
    with psycopg.connect(store, autocommit=True) as connection:
        connection.execute(script.encode())


def test_sql_between_versions_is_checked() -> None:
    assert "above --to 0" in pillarbox("schema", "sql", "--store", "sqlite://", "--from", "1", "--to", "0").sentence
    above = str(LATEST + 1)
    ran = pillarbox("schema", "sql", "--store", "sqlite://", "--to", above, "--down")
    assert f"no schema version {above}" in ran.sentence


def test_grants_are_printed_for_the_roles_that_were_named() -> None:
    ran = pillarbox(
        "schema", "grants", "--store", "postgresql://", "--schema", "mail", "--viewer", "eve", "--relay", "r"
    )

    assert ran.code == 0
    assert 'grant usage on schema "mail" to "eve";' in ran.out
    assert 'on "mail"."pillarbox_claim" to "r";' in ran.out
    assert "writer" not in ran.out


@pytest.mark.parametrize("store", ["postgresql://", "mysql://localhost/shop"])
def test_a_consumer_is_granted_the_inbox_of_the_consumers_that_were_named(store: str) -> None:
    command = ("schema", "grants", "--store", store, "--consumer", "shop")
    refused = pillarbox(*command)
    one = pillarbox(*command, "--inbox", "mail", "--inbox", "it's \\ billing")
    every = pillarbox(*command, "--inbox", "*")

    assert (refused.code, one.code, every.code) == (2, 0, 0)
    assert "--inbox CONSUMER for each one" in refused.err
    for name in ("mail", "it's \\ billing"):
        escaped = name.replace("\\", "\\\\").replace("'", "''")
        assert f"E'{escaped}'" in one.out or name.encode().hex() in one.out
    assert "restrictive" not in every.out
    if store.startswith("mysql"):  # there a row says it, and none says nothing
        assert f"values (unhex('{b'shop'.hex()}'), unhex('{b'*'.hex()}'))" in every.out
        assert every.out.count("insert ignore") == 1
