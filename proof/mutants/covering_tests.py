"""Which tests run a line: read from what `coverage_plugin` wrote."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

import msgspec
from coverage import CoverageData

from proof.mutants.coverage_plugin import FOLDER, Line
from proof.mutants.sites import Site

__all__ = ["CoveringTests", "choose_tests", "record"]

SQL_TESTS: Final[Mapping[str, Sequence[str]]] = {
    "src/pillarbox/stores/postgres/migrations/*": ["tests/integration/test_schema_postgres.py"],
    "src/pillarbox/stores/mariadb/migrations/*": ["tests/integration/test_schema_mariadb.py"],
    "src/pillarbox/stores/sqlite/migrations/*": ["tests/integration/test_schema_sqlite.py"],
    "src/pillarbox/stores/postgres/portable/*": ["tests/contracts/test_postgres_store.py::TestPortableStore"],
    "src/pillarbox/stores/postgres/*": [
        "tests/contracts/test_postgres_store.py::TestPostgresStore", "tests/integration/test_postgres_marks.py",
        "tests/integration/test_postgres_partitions.py", "tests/integration/test_postgres_history.py",
    ],
    "src/pillarbox/stores/mariadb/*": ["tests/contracts/test_mariadb_store.py::TestMariadbStore"],
    "src/pillarbox/stores/sqlite/*": ["tests/contracts/test_sqlite_store.py"],
    "src/pillarbox/stores/sync_sql/*": [
        "tests/contracts/test_sqlite_store.py", "tests/contracts/test_mariadb_store.py::TestMariadbStore",
    ],
    "*": ["tests/contracts/test_sqlite_store.py"],
}  # fmt: skip
"""Statements stand in files of their own, which coverage does not see. The first pattern that matches counts."""
_SECONDS: Final = 150.0
"""The tests of one break may take this long, by their times when the coverage was taken."""


def record(root: Path, folder: Path, *, jobs: int) -> None:
    """Run the whole suite and note which test runs which line. It takes twice as long as `make test`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "proof.mutants.coverage_plugin", "-p", "no:cacheprovider"]
    environ = {**os.environ, FOLDER: str(folder)}
    with _measured_programs():
        subprocess.run([*command, "-n", str(jobs), "--dist", "worksteal"], cwd=root, env=environ, check=False)
    merged = CoverageData(basename=str(folder / "all"))
    for part in sorted(folder.glob("data.*")):
        data = CoverageData(basename=str(part))
        data.read()
        merged.update(data)
        part.unlink()
    merged.write()


@contextmanager
def _measured_programs() -> Iterator[None]:
    """Let every program of this environment measure itself if `coverage_plugin` asks for it.

    PYTHONPATH would not do: tests start programs with an environment of their own.
    """
    startup = Path(sysconfig.get_path("purelib")) / "pillarbox-covering.pth"
    startup.write_text("import coverage; coverage.process_startup()\n", encoding="utf-8")
    try:
        yield
    finally:
        startup.unlink(missing_ok=True)


class CoveringTests:
    """The tests of a recorded run, by the lines that they run."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._root = root
        self._data = CoverageData(basename=str(folder / "all"))
        self._data.read()
        self._files = {_get_path_in_project(file): file for file in self._data.measured_files()}
        lines = chain.from_iterable(path.read_bytes().splitlines() for path in sorted(folder.glob("tests-*.jsonl")))
        tests = [msgspec.json.decode(line, type=Line) for line in lines]
        self._seconds = {test.test: test.seconds for test in tests if test.passed}

    def find(self, file: str, site: Site) -> Sequence[str]:
        """Return the tests that may notice a break there, those first that are likely to; none if no test runs it."""
        if file.endswith(".sql"):
            return next(tests for pattern, tests in SQL_TESTS.items() if fnmatch.fnmatch(file, pattern))
        if (measured := self._files.get(file)) is None:
            return []
        by_line = self._data.contexts_by_lineno(measured)
        first, last = site.covered_by
        running = {test for line in range(first, last + 1) for test in by_line.get(line, ()) if test in self._seconds}
        return choose_tests({test: self._seconds[test] for test in running}, seconds=_SECONDS)


def choose_tests(durations: Mapping[str, float], *, seconds: float) -> Sequence[str]:
    """Choose tests that take no longer than this together: the quickest of each file, then their next ones."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(durations, key=lambda test: (durations[test], test)):
        by_file[test.partition("::")[0]].append(test)
    files = sorted(by_file.values(), key=lambda tests: durations[tests[0]])
    chosen: list[str] = []
    for test in chain.from_iterable(zip_longest(*files)):
        if test is None:
            continue
        seconds -= durations[test]
        if seconds < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def _get_path_in_project(file: str) -> str:
    return file[file.rindex("src/pillarbox/") :]
