"""Breaks: what each changes, which tests must notice it, and whether it still fits the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["AREAS", "Break", "Unfit", "find_faults", "list_test_files", "load_breaks", "select_breaks"]

AREAS: Final = Path(__file__).with_name("areas")
_CONTRACTS: Final = "src/pillarbox/testing"
"""Tests that the files in `tests/contracts` inherit."""
_OPERATORS: Final = frozenset({"and", "or", "not"})


class Unfit(Exception):
    """The break does not fit the code: its old text is not there, or not once."""


class Break(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One small break of a promise."""

    name: str
    """The promise that is broken, as a sentence about the broken code."""
    file: str
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: Sequence[str]
    """Files of tests, or their ids, that must notice it."""
    match: str = ""
    """Only tests that match this expression, as pytest's `-k` takes it."""
    equivalent: str = ""
    """Why nobody could notice it. Then it counts neither as caught nor as survived."""
    survives: str = ""
    """Why no test notices it. It counts as survived."""
    area: str = ""
    drawn: bool = False
    """Drawn at random, with tests that passed when the coverage was taken."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its tests, as arguments of pytest."""
        return (*self.tests, *(["-k", self.match] if self.match else []))

    def apply(self, text: str) -> str:
        """Return the file with the break in it. Raises `Unfit` where the old text does not occur once."""
        if (count := text.count(self.old)) != 1:
            raise Unfit(f"its old text occurs {count} times in {self.file}")
        if self.old == self.new:
            raise Unfit("it changes nothing")
        return text.replace(self.old, self.new)


def load_breaks(folder: Path = AREAS) -> list[Break]:
    """Load the breaks of all areas."""
    loaded: list[Break] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["break"]:
            loaded.append(msgspec.convert({**entry, "area": path.stem}, Break))
    return loaded


def select_breaks(breaks: Iterable[Break], only: str) -> list[Break]:
    """Return the breaks of the area with that name, or else those whose name contains the text."""
    every = list(breaks)
    return [one for one in every if one.area == only] or [one for one in every if only.lower() in one.name.lower()]


def find_faults(breaks: Sequence[Break], root: Path) -> Iterator[str]:
    """Yield a sentence for each break that does not fit the project any more, and for each name that comes twice."""
    names: set[str] = set()
    for one in breaks:
        if one.name in names:
            yield f"{one.area}: {one.name}: another break has this name"
        names.add(one.name)
        for fault in _find_faults(one, root):
            yield f"{one.area}: {one.name}: {fault}"


def _find_faults(one: Break, root: Path) -> Iterator[str]:
    try:
        one.apply((root / one.file).read_text(encoding="utf-8"))
    except (OSError, Unfit) as fault:
        yield str(fault)
    if not one.tests:
        yield "no test is named"
    known = _read_tests(root, one)
    for test in one.tests:
        path, _, names = test.partition("::")
        if not (root / path).exists():
            yield f"there is no {path}"
        elif names and not re.search(rf"\b{_bare(names)}\b", known):
            yield f"there is no {names} in {path}"
    for word in re.findall(r"\w+", one.match):
        if word not in _OPERATORS and word not in known:
            yield f"no test matches {word!r}"


def _bare(names: str) -> str:
    """Return the last name of an id, without its parameters."""
    return re.escape(names.rsplit("::", maxsplit=1)[-1].partition("[")[0])


def list_test_files(root: Path, one: Break) -> list[Path]:
    """List the files of a break's tests, and the contracts that they inherit."""
    found: list[Path] = []
    for path in (root / test.partition("::")[0] for test in one.tests):
        own = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
        found += [*own, *path.parent.glob("conftest.py")]
        if any("Contract" in file.read_text(encoding="utf-8") for file in own):
            found += sorted((root / _CONTRACTS).rglob("*.py"))
    return found


def _read_tests(root: Path, one: Break) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in list_test_files(root, one))
