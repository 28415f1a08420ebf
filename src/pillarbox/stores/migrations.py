"""Schema versions, the plan from one to another, and its SQL. Connects to nothing: each store's `schema.py` runs it.

A store keeps `migrations/NNNN_name.up.sql` and `.down.sql` beside its code, written with the default names;
`Names.qualify` puts the configured schema and prefix in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

from pillarbox.errors import ConfigError, SchemaMissing, SchemaMixed
from pillarbox.message import Names
from pillarbox.stores.compatibility import Declaration, SchemaVersion, check_compatibility, parse_declaration

__all__ = [
    "Interrupted",
    "Migration",
    "Plan",
    "Step",
    "build_plan",
    "build_script",
    "build_statements",
    "check_release",
    "check_version",
    "check_whole",
    "explain_missing_table",
    "find_interrupted",
    "latest_version",
    "load_migrations",
    "load_release",
    "parse_migrations",
    "plan_downgrade",
    "plan_install",
    "plan_nothing",
    "plan_recovery",
    "plan_upgrade",
    "read_migrations",
    "split_script",
]

_FOLDERS: Final = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mariadb"}
"""URL scheme to the folder of its store. Other stores have no tables that Pillarbox creates."""
_FILE: Final = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.(?P<direction>up|down)\.sql")
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_CONCURRENTLY: Final = re.compile(r"\b(index) concurrently\b", re.IGNORECASE)
_VERSIONS: Final = re.compile(r"schema[\"'`]?(?: does| doesn|$)")
"""Table of versions, at the end of what a database says of a missing table."""
_END: Final = re.compile(r"\$\$.*?\$\$|'[^']*'|\bbegin\b.*?\bend\b|;", re.DOTALL | re.IGNORECASE)
"""A semicolon, or what may hold one without ending the statement: a function's or a trigger's body, a text."""


class Migration(msgspec.Struct, frozen=True):
    """One version of the schema: the script that reaches it from the one before, and the script back."""

    version: int
    name: str
    up: str
    down: str
    declared: Declaration = Declaration()


class Step(msgspec.Struct, frozen=True):
    """One script of a plan. `record` is the statement that keeps the version table true."""

    version: int
    name: str
    script: str
    record: str | None
    """None where the script removes the version table itself."""
    in_transaction: bool = True
    """False: its statements run one by one, and again after an interruption."""
    begin: str | None = None
    """Statement that records that the step has begun, where its statements commit one by one."""

    def sql(self, names: Names, *, quote: str = '"') -> str:
        """Return the script and its record, under the configured names, as it can run in a transaction."""
        script = self.script.strip() if self.in_transaction else _CONCURRENTLY.sub(r"\1", self.script.strip())
        parts = [part for part in (self.begin, script, self.record) if part is not None]
        return names.qualify("\n\n".join(parts), quote=quote)


class Plan(msgspec.Struct, frozen=True):
    """The steps from one version to another; none when they are the same."""

    current: int
    target: int
    steps: Sequence[Step]


# --- versions ---


def load_migrations(scheme: str) -> tuple[Migration, ...]:
    """Return the migrations of this release for stores of a URL scheme: `postgresql`, `sqlite` or `mysql`."""
    if scheme not in _FOLDERS:
        raise ConfigError(f"A {scheme} store has no tables that Pillarbox makes, so there is no SQL for it.")
    return read_migrations(files("pillarbox.stores") / _FOLDERS[scheme] / "migrations")


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """Read the migrations in a folder, by version."""
    return parse_migrations({file.name: file.read_text() for file in folder.iterdir() if file.name.endswith(".sql")})


def parse_migrations(texts: Mapping[str, str]) -> tuple[Migration, ...]:
    """Build migrations from file names and their texts, by version.

    `ConfigError` when a name is malformed, a number is missing or taken twice, or a script lacks its counterpart.
    """
    found: dict[tuple[int, str], dict[str, str]] = {}
    for file_name, text in sorted(texts.items()):
        match = _FILE.fullmatch(file_name)
        if match is None:
            raise ConfigError(f"The migration {file_name!r} is not named like 0002_some_name.up.sql; rename it.")
        found.setdefault((int(match["number"]), match["name"]), {})[match["direction"]] = text
    _check_numbers(version for version, _ in found)
    for (version, name), scripts in found.items():
        for direction in ("up", "down"):
            if direction not in scripts:
                raise ConfigError(
                    f"The migration {version:04}_{name} has no {direction} script; every version needs both."
                )
    return tuple(
        Migration(
            version, name, scripts["up"], scripts["down"],
            parse_declaration(f"{version:04}_{name}", version, scripts["up"]),
        )
        for (version, name), scripts in found.items()
    )  # fmt: skip


def _check_numbers(versions: Iterable[int]) -> None:
    for expected, version in enumerate(versions, start=1):
        if version < expected:
            raise ConfigError(f"Two migrations have the number {version:04}; give one of them the next free number.")
        if version > expected:
            raise ConfigError(f"There is no migration {expected:04} before {version:04}; numbers go up one by one.")


@cache
def load_release(scheme: str) -> Migration:
    """Return the last migration of this release: it says which tables the release works with."""
    return load_migrations(scheme)[-1]


def latest_version(scheme: str) -> int:
    """Return the schema version that this release works with."""
    return load_release(scheme).version


def check_version(current: int | None, *, latest: int) -> None:
    """Raise unless tables have exactly that version; None or 0 means no tables at all."""
    check_compatibility(SchemaVersion.build(current), latest=latest, runs_on=None, writes=True)


def check_release(found: SchemaVersion, release: Migration, *, writes: bool = True) -> None:
    """Raise unless the release whose last migration this is may use the tables that were found."""
    check_compatibility(found, latest=release.version, runs_on=release.declared.runs_on, writes=writes)


def explain_missing_table(text: str, *, where: str = "") -> SchemaMissing:
    """Build the error for a table that a statement did not find. `text` is what the database said.

    Without the table of versions there are no tables at all. Where that is there, `schema install` finds nothing to do.
    """
    if _VERSIONS.search(text):
        return SchemaMissing(f"A table is missing{where} ({text}): run `pillarbox schema install`.")
    return SchemaMissing(
        f"A table is missing{where} ({text}), which was there when the schema was installed: `pillarbox schema verify` "
        "lists all that is missing; restore it from a backup, or make it empty by its statements in `pillarbox schema "
        "sql`."
    )


# --- plans ---


def plan_install(migrations: Sequence[Migration], *, current: int, commits_each: bool = False) -> Plan:
    """Plan from nothing to the latest version. Existing tables must be of it: changing them is `upgrade`'s."""
    if current:
        check_version(current, latest=len(migrations))
    return build_plan(migrations, current=current, target=len(migrations), commits_each=commits_each)


def plan_nothing(migrations: Sequence[Migration], found: SchemaVersion, *, target: int | None = None) -> Plan | None:
    """Return a plan of no steps for tables that are newer and that this release may use; None if there may be some.

    So an older release can be deployed again after the tables were upgraded.
    """
    if target is None and found.version > len(migrations) and found.allows(len(migrations), writes=True):
        return Plan(found.version, found.version, [])
    return None


def plan_upgrade(
    migrations: Sequence[Migration], *, current: int, target: int | None = None, commits_each: bool = False
) -> Plan:
    """Plan up to the target, by default the latest version; from nothing too."""
    last = len(migrations) if target is None else target
    plan = build_plan(migrations, current=current, target=last, commits_each=commits_each)
    if plan.target < current:
        raise ConfigError(f"The schema is at version {current}, above {plan.target}; use `pillarbox schema downgrade`.")
    return plan


def plan_downgrade(migrations: Sequence[Migration], *, current: int, target: int, commits_each: bool = False) -> Plan:
    """Plan down to the target; 0 removes everything."""
    plan = build_plan(migrations, current=current, target=target, commits_each=commits_each)
    if target > current:
        raise ConfigError(f"The schema is at version {current}, below {target}; use `pillarbox schema upgrade`.")
    return plan


def build_plan(migrations: Sequence[Migration], *, current: int, target: int, commits_each: bool = False) -> Plan:
    """List the scripts that lead from the current version to the target, up or down, in the order to run them.

    `commits_each`: the database commits after each statement, so every step records that it has begun.
    """
    latest = len(migrations)
    if current > latest:
        check_version(current, latest=latest)
    if not 0 <= target <= latest:
        raise ConfigError(f"There is no schema version {target}; this release knows 0 (no tables) to {latest}.")
    if target >= current:
        ups = [_build_up(one, commits_each=commits_each) for one in migrations[current:target]]
        return Plan(current, target, ups)
    downs = [_build_down(one, commits_each=commits_each) for one in reversed(migrations[target:current])]
    return Plan(current, target, downs)


class Interrupted(msgspec.Struct, frozen=True):
    """Step that was begun and did not end."""

    version: int
    is_down: bool


def find_interrupted(versions: Iterable[int]) -> tuple[int, Interrupted | None]:
    """Return the version of the tables, and the step that was begun, from the rows of the table of versions.

    A step that has begun has a row with its negative version. If the version itself is there, it was on its way down.
    """
    rows = set(versions)
    current = max((row for row in rows if row > 0), default=0)
    begun = sorted(-row for row in rows if row < 0)
    if not begun:
        return current, None
    if begun[0] not in (current, current + 1) or len(begun) > 1:
        raise SchemaMixed(
            f"The table of versions records version {current} and that changes of {', '.join(map(str, begun))} have "
            "begun, which no command leaves behind: compare the tables with `pillarbox schema sql`."
        )
    return current, Interrupted(begun[0], is_down=begun[0] == current)


def check_whole(interrupted: Interrupted | None) -> None:
    """Raise `SchemaMixed` if a step was begun and did not end."""
    if interrupted is not None:
        raise SchemaMixed(
            f"A change of the tables was interrupted in version {interrupted.version}: run `pillarbox schema upgrade` "
            "or `pillarbox schema downgrade`, which finish it."
        )


def plan_recovery(
    migrations: Sequence[Migration], plan: Plan, interrupted: Interrupted | None, *, commits_each: bool = False
) -> Plan:
    """Return the plan with what an interrupted step needs before: none is left half done, whatever the direction.

    A step that goes on in its direction is repeated, which the plan does anyway. A way down is finished before the way
    up begins, and a way up that is given up is undone by the way down.
    """
    if interrupted is None:
        return plan
    version = interrupted.version
    if version > len(migrations):
        raise SchemaMixed(
            f"A change of the tables to version {version} was interrupted, and this release knows {len(migrations)}: "
            "finish it with `pillarbox schema upgrade` of the release that began it."
        )
    if (plan.target < version) if interrupted.is_down else (plan.target >= version):
        return plan
    undo = _build_down(migrations[version - 1], commits_each=commits_each)
    rest = build_plan(migrations, current=version - 1, target=plan.target, commits_each=commits_each)
    return Plan(plan.current, plan.target, [undo, *rest.steps])


def _build_up(migration: Migration, *, commits_each: bool) -> Step:
    declared = migration.declared
    values = {
        "version": migration.version,
        "readable_from": declared.readable_from,
        "writable_from": declared.writable_from,
    }
    known = {column: value for column, value in values.items() if value is not None}
    begin = _build_begin(migration, commits_each=commits_each)
    if begin is None:
        record = f"insert into pillarbox_schema ({', '.join(known)}) values ({', '.join(map(str, known.values()))});"
    else:
        changes = ", ".join(f"{column} = {value}" for column, value in known.items())
        record = f"update pillarbox_schema set {changes} where version = -{migration.version};"
    return Step(migration.version, migration.name, migration.up, record, declared.in_transaction, begin)


def _build_down(migration: Migration, *, commits_each: bool) -> Step:
    version = migration.version
    begin = _build_begin(migration, commits_each=commits_each, is_down=True)
    if version == 1:  # it created the table of versions, so its way back drops it: there is no row left to delete
        record = None
    elif begin is None:
        record = f"delete from pillarbox_schema where version = {version};"
    else:
        record = f"delete from pillarbox_schema where version in ({version}, -{version});"
    return Step(version, migration.name, migration.down, record, migration.declared.in_transaction, begin)


def _build_begin(migration: Migration, *, commits_each: bool, is_down: bool = False) -> str | None:
    """Return the statement that records a step as begun; None if it is one transaction.

    The first version creates the table of versions: without a version in it, that step has begun.
    """
    if migration.version == 1 and not is_down:
        return None
    if commits_each:
        return f"insert ignore into pillarbox_schema (version) values (-{migration.version});"
    if not migration.declared.in_transaction:
        return f"insert into pillarbox_schema (version) values (-{migration.version}) on conflict (version) do nothing;"
    return None


# --- SQL texts ---


def build_script(
    scheme: str,
    *,
    names: Names,
    start: int = 0,
    end: int | None = None,
    down: bool = False,
    migrations: Sequence[Migration] | None = None,
) -> str:
    """Write one transaction from version `start` up to `end`, by default the latest; with `down`, the way back.

    Stops at its first error when run with `psql -v ON_ERROR_STOP=1`, or by `sqlite3 -bail`. MySQL commits after each
    statement, stops by itself, and can run it again.
    """
    migrations = load_migrations(scheme) if migrations is None else migrations
    _check_names(scheme, names)
    commits_each = scheme == "mysql"
    last = build_plan(migrations, current=0, target=len(migrations) if end is None else end).target
    if start > last:
        raise ConfigError(
            f"--from {start} is above --to {last}; give the lower one first, and --down for the way back."
        )
    plan = build_plan(
        migrations, current=last if down else start, target=start if down else last, commits_each=commits_each
    )
    write = _write_mysql if scheme == "mysql" else _write_transaction
    title = f"-- Pillarbox schema for {scheme}, from version {plan.current} to {plan.target}."
    return "\n".join([title, *write(scheme, plan, names)]) + "\n"


def build_statements(scheme: str, *, names: Names, since: int, to: int | None = None) -> list[str]:
    """List the statements from one version to another, by default the latest, for drivers that take no scripts."""
    migrations = load_migrations(scheme)
    _check_names(scheme, names)
    is_mysql = scheme == "mysql"
    last = len(migrations) if to is None else to
    plan = build_plan(migrations, current=since, target=last, commits_each=is_mysql)
    quote = "`" if is_mysql else '"'
    return [statement for step in plan.steps for statement in split_script(step.sql(names, quote=quote))]


def split_script(script: str) -> Iterator[str]:
    """Split at the semicolons that end a statement: not in comments, texts, or the body of a function or trigger."""
    plain = _COMMENT.sub("", script)
    start = 0
    for mark in _END.finditer(plain):
        if mark[0] == ";":
            yield plain[start : mark.start()].strip()
            start = mark.end()
    if rest := plain[start:].strip():
        yield rest


def _check_names(scheme: str, names: Names) -> None:
    if scheme == "sqlite" and names.schema is not None:
        raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")


def _write_transaction(scheme: str, plan: Plan, names: Names) -> Iterator[str]:
    # SQLite takes its write lock at once: a deferred transaction would fail when it first writes.
    yield "begin immediate;" if scheme == "sqlite" else "begin;"
    if names.schema is not None:
        if plan.target > plan.current == 0:
            yield f'create schema if not exists "{names.schema}";'
        yield f'set local search_path = "{names.schema}";'
    for step in plan.steps:
        yield f"\n-- {step.version:04}_{step.name}"
        yield step.sql(names)
    yield "\ncommit;"


def _write_mysql(scheme: str, plan: Plan, names: Names) -> Iterator[str]:  # noqa: ARG001 - as `_write_transaction`
    if names.schema is not None and plan.target > plan.current == 0:
        yield f"create database if not exists `{names.schema}` character set utf8mb4 collate utf8mb4_bin;"
    for step in plan.steps:
        yield f"\n-- {step.version:04}_{step.name}"
        yield step.sql(names, quote="`")
