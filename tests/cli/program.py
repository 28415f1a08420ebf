"""Runs the real `pillarbox` program, as people do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PROGRAM", "Ran", "environment", "forbid_imports", "pillarbox"]

PROGRAM: Final = str(Path(sys.executable).with_name("pillarbox"))


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on stderr that says what was wrong; anything else there is a failure of the test."""
        assert self.err.startswith("Error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith(".\n"), self.err
        return self.err.removeprefix("Error: ").strip()


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's, without anything that would configure the program, and with the extra."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PILLARBOX_", "PG", "PYTHON"))}
    return kept | dict(extra)


def pillarbox(*arguments: str, cwd: Path | None = None, **extra: str) -> Ran:
    """Run it with these arguments and these environment variables, and nobody at the keyboard."""
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
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def forbid_imports(folder: Path, *modules: str, error: str = "ModuleNotFoundError(name)") -> str:
    """A PYTHONPATH under which importing these fails, as if they were not installed (or as the error says)."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {modules!r}:\n"
        f"            raise {error}\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return str(folder)
