"""A recorded run knows which test runs a line, also in a program that the test starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.mutants.covering_tests import CoveringTests, record
from proof.mutants.sites import find_sites

CODE = """\
def price(count):
    return 2 * count


def unused(count):
    return 3 * count


if __name__ == "__main__":
    print(price(4))
"""
TESTS = """\
import os
import subprocess
import sys


def test_the_program():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PILLARBOX"))}
    ran = subprocess.run([sys.executable, "src/pillarbox/shop.py"], env=kept, capture_output=True, text=True)
    assert ran.stdout == "8\\n"
"""


def test_a_program_is_measured_whose_environment_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    for file, text in (("src/pillarbox/shop.py", CODE), ("tests/test_shop.py", TESTS), ("pytest.ini", "[pytest]\n")):
        path = project / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # where the plugin is

    record(project, tmp_path / "covering", jobs=1)

    covering = CoveringTests(tmp_path / "covering", project)
    found = {site.line: covering.find("src/pillarbox/shop.py", site) for site in find_sites("shop.py", CODE)}
    assert found == {2: ["tests/test_shop.py::test_the_program"], 6: []}
