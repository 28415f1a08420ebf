"""The first steps of the README work as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_first_steps_deliver_an_order(tmp_path: Path) -> None:
    steps = README.partition("## Try it")[2].partition("\n## ")[0]
    program, commands = re.findall(r"```(?:python)?\n(.*?)```", steps, re.DOTALL)
    (tmp_path / "shop.py").write_text(program)

    printed = [run(command, cwd=tmp_path) for command in commands.strip().splitlines()]

    assert printed[-1] == "order 1: 129.90\n"


def run(command: str, *, cwd: Path) -> str:
    words = [sys.executable, *command.removeprefix("python ").split()]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
