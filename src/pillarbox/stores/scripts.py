"""Schema plans as text, for people who run SQL with their own tools. Connects to nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.migrations import Migration, Plan, latest_version, plan, shipped

__all__ = ["latest", "script", "split", "statements"]

_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_END: Final = re.compile(r"\$\$.*?\$\$|'[^']*'|;", re.DOTALL)


def script(scheme: str, *, names: Names, start: int = 0, end: int | None = None, down: bool = False) -> str:
    """One transaction from version `start` up to `end`, by default the latest; with `down`, the way back.

    Stops at its first error when run with `psql -v ON_ERROR_STOP=1`, or by `sqlite3 -bail`. MySQL commits after each
    statement, stops by itself, and can run it again.
    """
    migrations = _migrations(scheme)
    _check_names(scheme, names)
    last = len(migrations) if end is None else end
    whole = plan(migrations, current=0, target=last)
    if start > whole.target:
        raise ConfigError(
            f"--from {start} is above --to {last}; give the lower one first, and --down for the way back."
        )
    way = plan(migrations, current=last if down else start, target=start if down else last)
    return "\n".join(_parts(scheme, way, names)) + "\n"


def statements(scheme: str, *, names: Names, since: int, to: int | None = None) -> list[str]:
    """The way from one version to another, by default the latest, one by one, for drivers that take no scripts."""
    migrations = _migrations(scheme)
    _check_names(scheme, names)
    way = plan(migrations, current=since, target=len(migrations) if to is None else to)
    return [statement for step in way.steps for statement in split(step.sql(names, quote=_quote(scheme)))]


def latest(scheme: str) -> int:
    """The schema version that this release works with."""
    return latest_version(_folder(scheme))


def _migrations(scheme: str) -> Sequence[Migration]:
    return shipped(_folder(scheme))


def _folder(scheme: str) -> str:
    folder = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mariadb"}.get(scheme)
    if folder is None:
        raise ConfigError(f"A {scheme} store has no tables that Pillarbox makes, so there is no SQL for it.")
    return folder


def _check_names(scheme: str, names: Names) -> None:
    if scheme == "sqlite" and names.schema is not None:
        raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")


def split(script: str) -> Iterator[str]:
    """At semicolons that end a statement: not in comments, texts, or the body of a function."""
    plain = _COMMENT.sub("", script)
    start = 0
    for mark in _END.finditer(plain):
        if mark[0] == ";":
            yield plain[start : mark.start()].strip()
            start = mark.end()
    if rest := plain[start:].strip():
        yield rest


def _parts(scheme: str, way: Plan, names: Names) -> Iterator[str]:
    yield f"-- Pillarbox schema for {scheme}, from version {way.current} to {way.target}."
    if scheme == "mysql":
        yield from _mysql_parts(way, names)
        return
    yield "begin immediate;" if scheme == "sqlite" else "begin;"
    if names.schema is not None:
        if way.target > way.current == 0:
            yield f'create schema if not exists "{names.schema}";'
        yield f'set local search_path = "{names.schema}";'
    for step in way.steps:
        yield f"\n-- {step.version:04}_{step.name}"
        yield step.sql(names)
    yield "\ncommit;"


def _mysql_parts(way: Plan, names: Names) -> Iterator[str]:
    if names.schema is not None and way.target > way.current == 0:
        yield f"create database if not exists `{names.schema}` character set utf8mb4 collate utf8mb4_bin;"
    for step in way.steps:
        yield f"\n-- {step.version:04}_{step.name}"
        yield step.sql(names, quote="`")


def _quote(scheme: str) -> str:
    return "`" if scheme == "mysql" else '"'
