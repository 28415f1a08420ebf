"""What the program says about itself."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from pillarbox.cli._program import pillarbox as program
from tests.support.cli.program import PROGRAM, environment, forbid_imports, pillarbox

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
CODES = {0: "done", 1: "failed", 2: "wrong usage", 3: "unreachable", 4: "schema", 5: "no such message",
         6: "warnings", 7: "critical"}  # fmt: skip


def commands(command: click.Command = program, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = program
    while words and isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None
        command, words = inner, words[1:]
    return command, words


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_help_ends_with_an_example_that_the_program_accepts(path: tuple[str, ...]) -> None:
    command, _ = resolved(list(path))
    *_, heading, example = command.get_help(click.Context(command)).rstrip().splitlines()
    words = shlex.split(example.split("|")[0])

    assert heading.strip() == "Example:"
    assert words[0] == "pillarbox"
    leaf, arguments = resolved(words[1:])
    assert words[1 : 1 + len(path)] == list(path)
    leaf.make_context("example", arguments)


def test_the_help_runs() -> None:
    ran = pillarbox("--help")

    assert (ran.code, ran.err) == (0, "")
    for code, meaning in CODES.items():
        assert re.search(rf"^ +{code}  .*{meaning}", ran.out, re.MULTILINE)


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_and_option_is_in_the_docs(path: tuple[str, ...]) -> None:
    text = DOCS.read_text()
    command, _ = resolved(list(path))

    assert f"`{' '.join(('pillarbox', *path))}" in text
    for option in command.params:
        if isinstance(option, click.Argument):
            continue
        assert f"`{max(option.opts, key=len)}" in text
        assert option.name == "version" or f"`{option.envvar}`" in text


def test_every_exit_code_is_in_the_docs() -> None:
    for code in [*CODES, 130]:
        assert f"| {code} |" in DOCS.read_text()


def test_versions() -> None:
    assert pillarbox("--version").out == f"pillarbox {version('pillarbox')}\n"
    found = json.loads(pillarbox("version", "-o", "json").out)
    assert found["pillarbox"] == version("pillarbox")
    assert found["asyncpg"] == version("asyncpg")


def test_tables_are_drawn_for_people_where_rich_is_installed_and_plain_everywhere_else(tmp_path: Path) -> None:
    without_rich = forbid_imports(tmp_path, "rich")

    assert "│ pillarbox" in on_a_terminal("version", TERM="xterm")
    assert "\npillarbox  " in on_a_terminal("version", TERM="xterm", PYTHONPATH=without_rich)
    assert "\npillarbox  " in pillarbox("version").out


def on_a_terminal(*arguments: str, **extra: str) -> str:
    screen, terminal = pty.openpty()
    subprocess.run([PROGRAM, *arguments], check=True, stdout=terminal, env=environment(extra))
    os.close(terminal)
    text = os.read(screen, 100_000).decode().replace("\r\n", "\n")
    os.close(screen)
    return text
