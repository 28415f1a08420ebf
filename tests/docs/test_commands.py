"""Commands that pages and the program's own advice name are such as the program accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pillarbox.cli._program import pillarbox as program

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for folder in ("docs", "examples", "src") for path in sorted((ROOT / folder).rglob("*"))
      if path.suffix in (".md", ".py", ".html")),
]  # fmt: skip


def list_commands(text: str, *, is_page: bool) -> Iterator[str]:
    """List the commands in backticks, and on a page those in blocks of a shell too."""
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # a sentence of the code on several lines
    yield from re.findall(r"`(?:manage\.py )?(pillarbox [^`\n]+)`", text)
    for block in re.findall(r"^ *```(?:sh|console|)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL) if is_page else ():
        for line in block.splitlines():
            if found := re.fullmatch(r"(?:\$ )?(pillarbox .*?)(?: [|>].*|  #.*)?", line.strip()):
                yield found[1]


def find_error(line: str) -> str | None:
    """Return why the program would refuse a command. What names a command or an option alone is not complete."""
    command: click.Command = program
    _, *words = shlex.split(line)
    if {"|", "…"} & {*words} or any(word.startswith(("{change", "{chosen", "{command")) for word in words):
        return None  # a word stands for several
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"there is no command {words[0]}"
        command, words = found, words[1:]
    if isinstance(command, click.Group) or not words or words[-1].startswith("-"):
        return None
    try:
        command.make_context("example", words)
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


NAMED = {path: found for path in FILES
         if (found := sorted(set(list_commands(path.read_text("utf-8"), is_page=path.suffix == ".md"))))}  # fmt: skip


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_command_is_accepted(path: Path) -> None:
    wrong = [(line, error) for line in NAMED[path] if (error := find_error(line))]
    assert wrong == []


def test_a_wrong_command_is_found() -> None:
    assert sum(map(len, NAMED.values())) > 250
    assert find_error("pillarbox messages discard --destination billing") is not None
    assert find_error("pillarbox messages redo 7") is not None
    assert find_error("pillarbox messages discard") is None
