"""A plugin of pytest that notes which test runs which line, also in the programs that a test starts.

`python -m pytest -p proof.mutants.coverage_plugin` writes into the folder that `PILLARBOX_COVERING` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from coverage import Coverage

__all__ = ["FOLDER", "TEST", "Line", "pytest_configure"]

FOLDER: Final = "PILLARBOX_COVERING"
TEST: Final = "COVERING_TEST"
"""Not one of Pillarbox: tests remove those from the environment of the programs that they start."""
_SETTINGS: Final = """\
[run]
data_file = {folder}/data
parallel = True
sigterm = True
include = */src/pillarbox/*
disable_warnings = module-not-measured,no-data-collected,already-imported,couldnt-parse
concurrency = {concurrency}
context = {context}
"""


class Line(msgspec.Struct, frozen=True):
    """A test that ran."""

    test: str
    passed: bool
    seconds: float


def pytest_configure(config: pytest.Config) -> None:
    """Begin to note, in this process and in those that tests start."""
    if (folder := os.environ.get(FOLDER)) is None:
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    # A program that a test starts takes the name of the test from the environment of its start.
    programs = place / f"programs-{os.getpid()}.ini"
    programs.write_text(_SETTINGS.format(folder=place, concurrency="thread", context=f"${{{TEST}}}"))
    own = place / f"tests-{os.getpid()}.ini"
    own.write_text(_SETTINGS.format(folder=place, concurrency="thread,greenlet", context=""))
    os.environ["COVERAGE_PROCESS_START"] = str(programs)
    config.pluginmanager.register(_Notes(Coverage(config_file=str(own)), place), "covering-tests")


class _Notes:
    def __init__(self, coverage: Coverage, folder: Path) -> None:
        self._coverage = coverage
        self._file = (folder / f"tests-{os.getpid()}.jsonl").open("ab")
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        os.environ[TEST] = item.nodeid
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            os.environ.pop(TEST, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            line = Line(report.nodeid, report.passed, report.duration)
            self._file.write(msgspec.json.encode(line) + b"\n")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._file.close()
