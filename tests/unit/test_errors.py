"""The tree of errors is the one drawn in its docstring."""

from __future__ import annotations

import inspect
import re

import pytest

from pillarbox import errors

LINE = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+)(?P<rest>.*)$")


def drawn() -> dict[str, tuple[str | None, int | None]]:
    """Name to parent and own exit code, as the docstring draws them."""
    found: dict[str, tuple[str | None, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None or not line.startswith("    "):
            continue
        depth = len(match["branch"])
        above = [(column, name) for column, name in above if column < depth]
        code = re.search(r"exit (\d)$", match["rest"])
        found[match["name"]] = (above[-1][1] if above else None, int(code[1]) if code else None)
        above.append((depth, match["name"]))
    return found


def classes() -> dict[str, type[errors.PillarboxError]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in members if issubclass(cls, errors.PillarboxError)}


def test_every_error_is_drawn_under_its_parent() -> None:
    parents = {name: cls.__base__.__name__ for name, cls in classes().items() if cls.__base__ is not None}
    assert {name: parent or "Exception" for name, (parent, _) in drawn().items()} == parents


@pytest.mark.parametrize("name", sorted(classes()))
def test_the_drawn_exit_code_is_the_real_one(name: str) -> None:
    parent, code = drawn()[name]
    while code is None and parent is not None:
        parent, code = drawn()[parent]
    assert classes()[name].exit_code == (1 if code is None else code)


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_error_says_what_it_means(name: str) -> None:
    assert (classes()[name].__doc__ or "").strip().endswith(".")


def test_a_missing_extra_says_what_to_install() -> None:
    error = errors.MissingExtra("asyncpg", extra="postgres", needed_for="A PostgreSQL store")
    assert str(error) == (
        'A PostgreSQL store needs the package asyncpg, which is not installed: run pip install "pillarbox[postgres]".'
    )


def test_a_fence_names_destination_and_lanes_in_order() -> None:
    error = errors.Fenced("billing", [12, 3])
    assert (error.destination, error.partitions) == ("billing", frozenset({3, 12}))
    assert "billing partition 3, 12" in str(error)
