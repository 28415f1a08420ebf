"""Every example can be found, says what it shows and how to start it, and is started by that."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.support.examples.example import MAKE, ROOT, build_environment

NAMES: Final = sorted(path.parent.name for path in ROOT.glob("examples/*/__main__.py"))


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAKE, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=build_environment({}),
        timeout=100,
    )


def test_the_four_are_there() -> None:
    assert NAMES == ["modular_monolith", "shop_django", "shop_fastapi", "webhook_script"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_described(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text()
    for needed in (f"make example NAME={name}", "```mermaid", "## What to try", "pillarbox status", "kill -9"):
        assert needed in readme
    index = (ROOT / "docs" / "examples.md").read_text()
    assert f"(../examples/{name}/README.md)" in index
    assert f"make example NAME={name}" in index


@pytest.mark.parametrize("name", NAMES)
def test_make_runs_it_in_the_virtualenv(name: str) -> None:
    assert f"{sys.prefix}/bin/python -m examples.{name}\n" in make("--dry-run", "example", f"NAME={name}").stdout


@pytest.mark.parametrize("arguments", [[], ["NAME=nothing"]])
def test_make_says_which_there_are(arguments: list[str]) -> None:
    told = make("example", *arguments)
    assert told.returncode != 0
    assert f"one of {' '.join(NAMES)}." in told.stdout
