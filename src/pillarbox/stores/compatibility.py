"""Which releases may use which tables: what a migration declares, and what a release decides by it.

A migration declares in the first lines of its `up.sql`:

    -- readable from: 9      releases of version 9 on may read the tables
    -- writable from: 9      releases of version 9 on may write them too
    -- runs on: 9            this release also works with tables of version 9
    -- transaction: none     its statements run one by one, outside a transaction

The first two are kept in `pillarbox_schema`, so that a release reads there what a version allows that it does not
know. Without a line, only the version itself is meant. docs/schema.md has the rules for authors of migrations.
"""

from __future__ import annotations

import re
from typing import Final, Self

import msgspec

from pillarbox.errors import ConfigError, SchemaMissing, SchemaNewer, SchemaOutdated

__all__ = ["FIRST_DECLARED", "Declaration", "SchemaVersion", "check_compatibility", "parse_declaration"]

FIRST_DECLARED: Final = 9
"""First version whose table of versions says which releases may use it. The versions before fit their own alone."""
_HEADER: Final = re.compile(r"(?:--[^\n]*\n|\s*\n)*")
_LINE: Final = re.compile(r"^-- *(readable from|writable from|runs on|transaction) *: *(.*?) *$", re.MULTILINE)


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration says of releases and tables that are older than it. None: nothing, so no other fits."""

    readable_from: int | None = None
    writable_from: int | None = None
    runs_on: int | None = None
    in_transaction: bool = True


class SchemaVersion(msgspec.Struct, frozen=True):
    """Version of the tables that were found, and the oldest releases that may read and write them."""

    version: int
    readable_from: int
    writable_from: int

    @classmethod
    def build(cls, version: int | None, readable_from: int | None = None, writable_from: int | None = None) -> Self:
        """Build it from what the table of versions holds, where nothing may be declared."""
        version = version or 0
        readable = version if readable_from is None else readable_from
        return cls(version, readable, max(readable, version if writable_from is None else writable_from))

    def allows(self, release: int, *, writes: bool) -> bool:
        """Return whether a release of that version may use these tables, which are newer than it."""
        return release >= (self.writable_from if writes else self.readable_from)


def parse_declaration(name: str, version: int, script: str) -> Declaration:
    """Read the declarations in the comment at the top of a script; `ConfigError` for one that makes no sense."""
    header = _HEADER.match(script)
    found: dict[str, str] = {}
    for key, value in _LINE.findall(header[0] if header else ""):
        if key in found:
            raise ConfigError(f"The migration {name} says `{key}` twice; leave one out.")
        found[key] = value
    transaction = found.pop("transaction", None)
    if transaction not in (None, "none"):
        raise ConfigError(f"The migration {name} says `transaction: {transaction}`; write `none`, or leave it out.")
    for key, value in found.items():
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= version):
            raise ConfigError(f"The migration {name} says `{key}: {value}`; write a version from 1 to {version}.")
    numbers = {key.replace(" ", "_"): int(value) for key, value in found.items()}
    declared = Declaration(
        readable_from=numbers.get("readable_from"),
        writable_from=numbers.get("writable_from"),
        runs_on=numbers.get("runs_on"),
        in_transaction=transaction is None,
    )
    if (declared.writable_from or version) < (declared.readable_from or version):
        raise ConfigError(
            f"The migration {name} is writable from version {declared.writable_from} and readable from a later one; "
            "whoever writes the tables reads them too."
        )
    return declared


def check_compatibility(found: SchemaVersion, *, latest: int, runs_on: int | None, writes: bool) -> None:
    """Raise unless a release may use the tables that were found.

    `latest` is the version that the release was made for, `runs_on` the oldest that it works with. `writes`: it also
    changes rows.
    """
    if found.version <= 0:
        raise SchemaMissing("The store has no Pillarbox tables; run `pillarbox schema install`.")
    if found.version < (latest if runs_on is None else runs_on):
        raise SchemaOutdated(
            f"The store's schema is version {found.version} and this release needs {latest}; "
            "run `pillarbox schema upgrade`."
        )
    if found.version <= latest or found.allows(latest, writes=writes):
        return
    if writes and found.allows(latest, writes=False):
        raise SchemaNewer(
            f"The store's schema is version {found.version}, which this release, made for version {latest}, may read "
            "but not write; upgrade the pillarbox package."
        )
    raise SchemaNewer(
        f"The store's schema is version {found.version} and this release knows {latest}; upgrade the pillarbox package."
    )
