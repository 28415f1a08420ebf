"""Two releases as wheels, each in a virtualenv of its own: the one of this tree, and one that has a further version.

The further version adds a column to history, and its release fills that column when it settles, if the tables have it.
It is made up here, of this tree's own sources: so it can be built from a clone without history.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.stores.migrations import latest_version

__all__ = ["NEXT", "NOTE", "Release", "build_releases"]

_ROOT: Final = Path(__file__).parents[2]
_BUILT_FROM: Final = ("src", "pyproject.toml", "README.md", "LICENSE")
_STORES: Final = ("postgres", "sqlite", "mariadb")
_BEFORE: Final = latest_version("sqlite")
NEXT: Final = _BEFORE + 1
"""Version of the tables that the made-up release adds."""
NOTE: Final = "new"
"""Value of the new column in what the made-up release settled."""
_UP: Final = f"""-- A column that only the next release fills.
-- readable from: {_BEFORE}
-- writable from: {_BEFORE}
-- runs on: {_BEFORE}

alter table pillarbox_history add column note text;
"""
_ONLINE_UP: Final = _UP.replace("\n\n", "\n-- transaction: none\n\n").replace(
    "column note", "column if not exists note"
) + (
    "create index concurrently if not exists pillarbox_history_note_idx\n"
    "    on pillarbox_history (note, id) where note is not null;\n"
)
"""PostgreSQL also builds an index meanwhile."""
_DOWN: Final = "alter table pillarbox_history drop column note;\n"
_ONLINE_DOWN: Final = (
    "drop index concurrently if exists pillarbox_history_note_idx;\n"
    "alter table pillarbox_history drop column if exists note;\n"
)
_SCRIPTS: Final[Mapping[str, tuple[str, str]]] = {
    "postgres": (_ONLINE_UP, _ONLINE_DOWN), "sqlite": (_UP, _DOWN), "mariadb": (_UP, _DOWN),
}  # fmt: skip
_COLUMNS: Final = re.compile(r"(insert into pillarbox_history \([^)]*\b(?:status|relay_id))\)")
_VALUES: Final = re.compile(r"('delivered'(?:, (?::|new\.)relay_id)?)$", re.MULTILINE)
_STATEMENT: Final = re.compile(
    r"^-- name: (?P<name>[a-z0-9_]+)\n(?P<text>.*?)(?=^-- name:|\Z)", re.MULTILINE | re.DOTALL
)


class Release(msgspec.Struct, frozen=True):
    """An installed release."""

    name: str
    python: Path
    """The interpreter that imports it."""


def build_releases(folder: Path) -> Mapping[str, Release]:
    """Build and install both releases; return them by name: `old` is this tree, `new` has the further version."""
    return {name: _install(name, _build_wheel(name, folder), folder) for name in ("old", "new")}


def _build_wheel(name: str, folder: Path) -> Path:
    tree, built = folder / f"{name}-tree", folder / f"{name}-wheel"
    tree.mkdir()
    for part in _BUILT_FROM:
        source = _ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / part)
    if name == "new":
        _add_version(tree / "src" / "pillarbox" / "stores")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=tree, check=True, capture_output=True, timeout=120)
    (wheel,) = built.glob("*.whl")
    return wheel


def _add_version(stores: Path) -> None:
    for store in _STORES:
        up, down = _SCRIPTS[store]
        (stores / store / "migrations" / f"{NEXT:04}_note.up.sql").write_text(up)
        (stores / store / "migrations" / f"{NEXT:04}_note.down.sql").write_text(down)
    changed = [add_variants(file) for file in stores.glob("*/sql/*.sql")]
    assert {"postgres", "sync_sql", "sqlite"} <= set().union(*changed), (
        "no statement settles what was delivered: mend the patterns"
    )


def add_variants(file: Path) -> set[str]:
    """Add to each statement that keeps delivered messages one that fills the column; return the store, if any."""
    text = file.read_text()
    variants = ""
    for found in _STATEMENT.finditer(text):
        changed, columns = _COLUMNS.subn(r"\1, note)", found["text"], count=1)
        changed, values = _VALUES.subn(rf"\1, '{NOTE}'", changed, count=1)
        if columns and values:
            variants += f"\n-- name: {found['name']} since {NEXT}\n{changed.rstrip()}\n"
    if variants:
        file.write_text(text.rstrip() + "\n" + variants)
        return {file.parents[1].name}
    return set()


def _install(name: str, wheel: Path, folder: Path) -> Release:
    """Install a wheel beside the packages of this interpreter, whose own Pillarbox it hides.

    A wheel of pure Python is installed by unpacking it: no package index is asked, and no installer is needed.
    """
    home = folder / f"{name}-venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, capture_output=True, timeout=120)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = [str(python), "-c", "import pillarbox; print(pillarbox.__file__)"]
    found = subprocess.run(where, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    assert found.startswith(str(packages)), f"{python} imports {found}"
    return Release(name, python)
