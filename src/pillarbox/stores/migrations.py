"""Numbered schema versions, and the way from one to another. Decides only; the stores' `schema.py` run it.

A store keeps `migrations/NNNN_name.up.sql` and `.down.sql` beside its code, written with the default names;
`Names.applied` puts the configured schema and prefix in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

from pillarbox.errors import ConfigError, SchemaMissing, SchemaNewer, SchemaOutdated
from pillarbox.names import Names

__all__ = [
    "Migration",
    "Plan",
    "Step",
    "check_version",
    "downgrade_plan",
    "install_plan",
    "latest_version",
    "numbered",
    "plan",
    "read_migrations",
    "shipped",
    "upgrade_plan",
]

_FILE: Final = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.(?P<way>up|down)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One version of the schema: how to reach it from the one before, and how to go back."""

    version: int
    name: str
    up: str
    down: str


class Step(msgspec.Struct, frozen=True):
    """One script of a plan. `record` is the statement that keeps the version table true."""

    version: int
    name: str
    script: str
    record: str | None
    """None where the script removes the version table itself."""

    def sql(self, names: Names, *, quote: str = '"') -> str:
        """The script and its record, under the configured names."""
        parts = [self.script.strip()] if self.record is None else [self.script.strip(), self.record]
        return names.applied("\n\n".join(parts), quote=quote)


class Plan(msgspec.Struct, frozen=True):
    """The way from one version to another; empty when they are the same."""

    current: int
    target: int
    steps: Sequence[Step]


def numbered(texts: Mapping[str, str]) -> tuple[Migration, ...]:
    """File names and their texts as migrations, by version.

    `ConfigError` when a name is malformed, a number is missing or taken twice, or a script lacks its other way.
    """
    found: dict[tuple[int, str], dict[str, str]] = {}
    for file_name, text in sorted(texts.items()):
        match = _FILE.fullmatch(file_name)
        if match is None:
            raise ConfigError(f"The migration {file_name!r} is not named like 0002_some_name.up.sql; rename it.")
        found.setdefault((int(match["number"]), match["name"]), {})[match["way"]] = text
    _check_numbers(version for version, _ in found)
    return tuple(_paired(version, name, ways) for (version, name), ways in found.items())


def _check_numbers(versions: Iterable[int]) -> None:
    for expected, version in enumerate(versions, start=1):
        if version < expected:
            raise ConfigError(f"Two migrations have the number {version:04}; give one of them the next free number.")
        if version > expected:
            raise ConfigError(f"There is no migration {expected:04} before {version:04}; numbers go up one by one.")


def _paired(version: int, name: str, ways: Mapping[str, str]) -> Migration:
    for way in ("up", "down"):
        if way not in ways:
            raise ConfigError(f"The migration {version:04}_{name} has no {way} script; every version needs both.")
    return Migration(version, name, ways["up"], ways["down"])


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """The migrations in a folder, by version."""
    return numbered({file.name: file.read_text() for file in folder.iterdir() if file.name.endswith(".sql")})


def shipped(store: str) -> tuple[Migration, ...]:
    """The migrations of a store of this release: `"postgres"`, `"sqlite"` or `"mariadb"`."""
    return read_migrations(files("pillarbox.stores") / store / "migrations")


def latest_version(store: str) -> int:
    """The schema version that this release works with."""
    return shipped(store)[-1].version


def check_version(current: int | None, *, latest: int) -> None:
    """Whether tables of that version fit this release; None or 0 is no tables at all."""
    if not current:
        raise SchemaMissing("The store has no Pillarbox tables; run `pillarbox schema install`.")
    if current > latest:
        raise SchemaNewer(
            f"The store's schema is version {current} and this release knows {latest}; upgrade the pillarbox package."
        )
    if current < latest:
        raise SchemaOutdated(
            f"The store's schema is version {current} and this release needs {latest}; run `pillarbox schema upgrade`."
        )


def plan(migrations: Sequence[Migration], *, current: int, target: int) -> Plan:
    """The scripts that lead from the current version to the target, up or down, in the order to run them."""
    latest = len(migrations)
    if current > latest:
        check_version(current, latest=latest)
    if not 0 <= target <= latest:
        raise ConfigError(f"There is no schema version {target}; this release knows 0 (no tables) to {latest}.")
    if target >= current:
        return Plan(current, target, [_up(migration) for migration in migrations[current:target]])
    return Plan(current, target, [_down(migration) for migration in reversed(migrations[target:current])])


def install_plan(migrations: Sequence[Migration], *, current: int) -> Plan:
    """From nothing to the latest version. Tables that are there must be of it: changing them is `upgrade`'s."""
    if current:
        check_version(current, latest=len(migrations))
    return plan(migrations, current=current, target=len(migrations))


def upgrade_plan(migrations: Sequence[Migration], *, current: int, target: int | None = None) -> Plan:
    """Up to the target, by default the latest; from nothing too."""
    way = plan(migrations, current=current, target=len(migrations) if target is None else target)
    if way.target < current:
        raise ConfigError(f"The schema is at version {current}, above {way.target}; use `pillarbox schema downgrade`.")
    return way


def downgrade_plan(migrations: Sequence[Migration], *, current: int, target: int) -> Plan:
    """Down to the target; 0 removes everything."""
    way = plan(migrations, current=current, target=target)
    if target > current:
        raise ConfigError(f"The schema is at version {current}, below {target}; use `pillarbox schema upgrade`.")
    return way


def _up(migration: Migration) -> Step:
    record = f"insert into pillarbox_schema (version) values ({migration.version});"
    return Step(migration.version, migration.name, migration.up, record)


def _down(migration: Migration) -> Step:
    removes_the_record = migration.version == 1
    record = None if removes_the_record else f"delete from pillarbox_schema where version = {migration.version};"
    return Step(migration.version, migration.name, migration.down, record)
