"""`python -m proof.published`: which published tables are older than the code that they are about.

Each table in the docs ends with a line that names its command and its commit. The command that makes a table writes
the line, and this module reads it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["PUBLISHED", "Age", "Table", "find_age", "format_age", "format_stamp", "main", "write_table"]

_ROOT: Final = Path(__file__).parents[1]
_STAMP: Final = re.compile(
    r"^Made by `(?P<command>make [^`]+)` from commit `(?P<commit>[0-9a-f]{7,40})` of", re.MULTILINE
)
_RELAY: Final = ("src/pillarbox/relay", "src/pillarbox/stores")


class Table(NamedTuple):
    """A table in the docs that a command measured."""

    page: str
    command: str
    about: Sequence[str]
    """Folders and files whose changes the table does not know."""


PUBLISHED: Final = (
    Table(
        "docs/benchmarks.md", "make bench", (*_RELAY, "src/pillarbox/brokers", "src/pillarbox/writers", "benchmarks")
    ),
    Table("docs/clusters.md", "make proof-clusters", (*_RELAY, "src/pillarbox/brokers", "proof/clusters")),
    Table("docs/crash.md", "make crash", (*_RELAY, "src/pillarbox/writers", "proof/crash")),
    Table(
        "docs/exactly-once.md",
        "make chain",
        (*_RELAY, "src/pillarbox/consumer", "src/pillarbox/inbox.py", "proof/chain"),
    ),
    Table("docs/mutants.md", "make mutants", ("src/pillarbox", "proof/mutants/areas")),
    Table("docs/simulation.md", "make simulate", ("src/pillarbox/relay", "proof/simulation")),
    Table("docs/sizing.md", "make bench ONLY=sizing", (*_RELAY, "src/pillarbox/writers", "benchmarks/sizing.py")),
    Table(
        "docs/sizing.md",
        "make simulate-membership",
        ("src/pillarbox/relay/membership.py", "src/pillarbox/relay/lease.py", "proof/membership"),
    ),
    Table("docs/support.md", "make test-servers", ("src/pillarbox/stores", "src/pillarbox/brokers")),
    Table("docs/transports/faults.md", "make fault-table", ("src/pillarbox/relay", "src/pillarbox/brokers")),
)


class Age(NamedTuple):
    """How far the code has gone since a table was made."""

    commit: str
    changes: int | None
    """Commits since then that changed what the table is about; None if the commit is not in this history."""


def format_stamp(command: str, root: Path = _ROOT) -> str:
    """Return the line that ends a table: the command, and the commit of the code that it ran."""
    commit = _ask_git(root, "log", "-1", "--format=commit `%h` of %cs") or "an unknown commit"
    return f"Made by `{command}` from {commit}."


def write_table(page: Path, command: str, table: str) -> None:
    """Replace the table of this command in its page, between its two marks, and name the commit below it."""
    begin, end = f"<!-- results of {command} -->\n", "<!-- end of results -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not mark or not last:
        raise ValueError(f"{page} has no place for the table: put it between {begin.strip()} and {end}")
    text = f"{before}{begin}\n{table.strip()}\n\n{format_stamp(command)}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def find_age(table: Table, root: Path = _ROOT) -> Age | None:
    """Return the age of a table; None if its page names no commit for it."""
    text = (root / table.page).read_text(encoding="utf-8")
    commits = {found["command"]: found["commit"] for found in _STAMP.finditer(text)}
    if (commit := commits.get(table.command)) is None:
        return None
    changes = _ask_git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *table.about)
    return Age(commit, int(changes) if changes else None)


def format_age(table: Table, age: Age) -> str:
    """Return one sentence about the age of a table."""
    if age.changes is None:
        return f"{table.page}: commit {age.commit} of `{table.command}` is not in this history"
    if age.changes == 0:
        return f"{table.page}: `{table.command}` ran on commit {age.commit}, which is current"
    commits = "1 commit" if age.changes == 1 else f"{age.changes} commits"
    return f"{table.page}: {commits} since {age.commit} changed its code; `{table.command}` renews it"


def main() -> int:
    """Print a line for each table. Return 1 if one is older than its code."""
    ages = [(table, find_age(table)) for table in PUBLISHED]
    for table, age in ages:
        print(f"{table.page}: no commit is named for `{table.command}`" if age is None else format_age(table, age))
    return 0 if all(age is not None and age.changes == 0 for _, age in ages) else 1


def _ask_git(root: Path, *arguments: str) -> str:
    """Return what git answers; nothing if it cannot tell."""
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
