"""Breaks that nobody chose: places drawn at random over the whole source, each with the tests that run it."""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec

from proof.mutants.breaks import Break
from proof.mutants.sites import Site, cut_block, find_sites

__all__ = ["REASONS", "Draw", "Reason", "draw_breaks", "load_reasons", "name_package"]

REASONS: Final = Path(__file__).with_name("survivors.toml")
_SOURCES: Final = "src/pillarbox"
_LEFT_OUT: Final = ("src/pillarbox/demo/", "src/pillarbox/testing/")
"""The demo is run as a whole, and the contract suites are tests themselves, which broken stores test."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why no test notices a break that was drawn once. Exactly one of the two fields is set."""

    equivalent: str = ""
    """The program does the same with it, so it is not counted."""
    survives: str = ""
    """It counts as survived."""


class Draw(NamedTuple):
    """What a draw gave."""

    breaks: Sequence[Break]
    uncovered: Sequence[Break]
    """No test runs these lines at all: they count as survivors."""


def load_reasons(file: Path = REASONS) -> dict[str, Reason]:
    """Load the reasons of known survivors, by the name of the break without its line."""
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), dict[str, Reason])


def draw_breaks(
    root: Path,
    *,
    number: int,
    seed: int,
    find_tests: Callable[[str, Site], Sequence[str]],
    reasons: Mapping[str, Reason] | None = None,
) -> Draw:
    """Draw this number of breaks. The same seed draws the same ones from the same source."""
    every = list(_list_sites(root))
    chance = random.Random(seed)
    chance.shuffle(every)
    breaks: list[Break] = []
    uncovered: list[Break] = []
    for file, site in every:
        if len(breaks) + len(uncovered) == number:
            break
        made = _make_break(root, file, site, tests=find_tests(file, site), reasons=reasons or {})
        if made is not None:
            (breaks if made.tests else uncovered).append(made)
    return Draw(breaks, uncovered)


def name_package(file: str) -> str:
    """Name the package of a file, as the score counts them: a folder, or the core for modules of none."""
    folders = PurePosixPath(file).relative_to(_SOURCES).parts[:-1]
    return folders[0] if folders else "core"


def _list_sites(root: Path) -> Iterator[tuple[str, Site]]:
    for path in sorted((root / _SOURCES).rglob("*")):
        file = path.relative_to(root).as_posix()
        if path.suffix in (".py", ".sql") and not file.startswith(_LEFT_OUT):
            for site in find_sites(file, path.read_text(encoding="utf-8")):
                yield file, site


def _make_break(
    root: Path, file: str, site: Site, *, tests: Sequence[str], reasons: Mapping[str, Reason]
) -> Break | None:
    """Make the break, or none where the text would not be a program, or be the same one."""
    text = (root / file).read_text(encoding="utf-8")
    block = cut_block(text, site)
    if block is None or not _is_another_program(file, text, text.replace(*block)):
        return None
    module, what = file.removeprefix(_SOURCES + "/"), f"{site.kind}: {_show(text, site)}"
    reason = reasons.get(f"{module} {what}", Reason())
    return Break(
        name=f"{module}:{site.line} {what}", file=file, old=block[0], new=block[1], tests=tests,
        equivalent=reason.equivalent, survives=reason.survives, area=name_package(file), drawn=True,
    )  # fmt: skip


def _is_another_program(file: str, before: str, after: str) -> bool:
    if not file.endswith(".py"):
        return before != after
    try:
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    except SyntaxError:
        return False


def _show(text: str, site: Site) -> str:
    """Show what stands there before and after, on one line."""
    old = " ".join(text.encode()[site.start : site.end].decode().split())
    return f"{_shorten(old)} -> {_shorten(site.new) or 'nothing'}"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
