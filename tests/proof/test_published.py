"""Each published table names the commit that it was made from, and says when its code has changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proof.published import PUBLISHED, Age, Table, find_age, format_age, format_stamp, write_table

TABLE = Table("docs/crash.md", "make crash", ("src/relay",))


@pytest.mark.parametrize("table", PUBLISHED, ids=lambda table: table.command)
def test_each_table_names_its_commit_and_is_as_new_as_its_code(table: Table) -> None:
    age = find_age(table)
    assert age is not None, f"{table.page} names no commit for `{table.command}`"
    if age.changes != 0:
        pytest.skip(format_age(table, age))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a page and the code that its table is about."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "src" / "relay").mkdir(parents=True)
    (tmp_path / TABLE.page).write_text("Intro.\n\n<!-- results of make crash -->\nold\n<!-- end of results -->\nEnd.\n")
    (tmp_path / "src" / "relay" / "relay.py").write_text("one = 1\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path, "Begin")
    return tmp_path


def _git(project: Path, *arguments: str) -> str:
    name = ["-c", "user.name=Test", "-c", "user.email=test@shop.example", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *name, *arguments], cwd=project, check=True, capture_output=True, text=True
    ).stdout.strip()


def _commit(project: Path, subject: str) -> str:
    _git(project, "add", "--all")
    _git(project, "commit", "--quiet", "--message", subject)
    return _git(project, "rev-parse", "--short", "HEAD")


def _publish(project: Path) -> None:
    page = project / TABLE.page
    page.write_text(f"{page.read_text()}\n{format_stamp(TABLE.command, project)}\n")


def test_a_table_is_older_once_its_code_has_changed(project: Path) -> None:
    commit = _git(project, "rev-parse", "--short", "HEAD")
    _publish(project)
    _commit(project, "Publish the table")
    age = find_age(TABLE, project)
    assert age == Age(commit, 0)
    assert "current" in format_age(TABLE, age)

    (project / "src" / "relay" / "relay.py").write_text("two = 2\n")
    _commit(project, "Change the code")
    (project / "docs" / "other.md").write_text("Another page.\n")
    _commit(project, "Change a page")
    age = find_age(TABLE, project)
    assert age == Age(commit, 1)
    assert format_age(TABLE, age) == f"docs/crash.md: 1 commit since {commit} changed its code; `make crash` renews it"


def test_a_table_without_a_commit_or_of_another_history_is_told_apart(project: Path) -> None:
    assert find_age(TABLE, project) is None
    page = project / TABLE.page
    page.write_text("Made by `make crash` from commit `0123456` of 2026-01-01.\n")
    age = find_age(TABLE, project)
    assert age == Age("0123456", None)
    assert "not in this history" in format_age(TABLE, age)


def test_a_command_replaces_its_own_table_only(project: Path) -> None:
    page = project / TABLE.page
    write_table(page, "make crash", "| new |")
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("Intro.\n\n<!-- results of make crash -->\n\n| new |\n\nMade by `make crash` from commit `")
    assert text.endswith("\n\n<!-- end of results -->\nEnd.\n")
    write_table(page, "make crash", "| newer |")
    assert page.read_text().count("Made by") == 1
    with pytest.raises(ValueError, match="no place for the table"):
        write_table(page, "make chain", "| other |")
