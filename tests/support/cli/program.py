"""Runs the real `pillarbox` program, as people do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PROGRAM", "RunResult", "environment", "forbid_imports", "pillarbox"]

PROGRAM: Final = str(Path(sys.executable).with_name("pillarbox"))


@dataclass(frozen=True, slots=True)
class RunResult:
    """Exit code and output of one run."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The error: one line on stderr. Anything else there fails the test."""
        assert self.err.startswith("Error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith(".\n"), self.err
        return self.err.removeprefix("Error: ").strip()


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would configure the program, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PILLARBOX_", "PG", "PYTHON"))}
    return kept | dict(extra)


def pillarbox(*arguments: str, cwd: Path | None = None, **extra: str) -> RunResult:
    """Run the program with these arguments and environment variables, without a terminal."""
    ran = subprocess.run(
        [PROGRAM, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(extra),
        stdin=subprocess.DEVNULL,
        timeout=110,
    )
    return RunResult(ran.returncode, ran.stdout, ran.stderr)


def forbid_imports(folder: Path, *modules: str, error: str = "ModuleNotFoundError(name)") -> str:
    """Return a PYTHONPATH under which importing these modules fails, by default as if they were not installed."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {modules!r}:\n"
        f"            raise {error}\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return str(folder)
