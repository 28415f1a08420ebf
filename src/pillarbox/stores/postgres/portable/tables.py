"""The tables without what only PostgreSQL itself has, derived from the store's own migrations.

So a column that a version adds is in both. They begin with the first version that declares who may use it: versions
before it exist only as steps on the way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from pillarbox.stores.compatibility import FIRST_DECLARED
from pillarbox.stores.migrations import Migration, split_script

__all__ = ["build_portable"]

_NATIVE: Final = re.compile(
    r"(create (or replace )?function|drop function|do \$\$|create trigger|(revoke|grant) execute on function"
    r"|alter table \w+ (re)?set \(|create index pillarbox_outbox_late_idx|set local )",
    re.IGNORECASE,
)
"""Beginnings of statements that only PostgreSQL itself takes."""
_NATIVE_MIGRATIONS: Final = frozenset({"partitions"})
_STORAGE: Final = re.compile(r"\) with \([^)]*\)$", re.DOTALL)
_CACHE: Final = re.compile(r" \(cache \d+\)")
_COLUMNS: Final = (
    re.compile(r"^ *tx +xid8[^\n]*\n", re.MULTILINE),
    re.compile(r",\s*add column done_tx xid8"),
)
_SLOTS: Final = """
create table pillarbox_slot (
    slot smallint not null,
    constraint pillarbox_slot_pkey primary key (slot)
);
insert into pillarbox_slot select * from generate_series(0, 255);
"""
"""Rows that are locked in place of advisory locks."""
_DROP_ALL: Final = """
drop view pillarbox_messages;
drop table pillarbox_outbox, pillarbox_history, pillarbox_claim, pillarbox_lane, pillarbox_relay, pillarbox_destination,
    pillarbox_journal, pillarbox_inbox, pillarbox_rollup, pillarbox_sleeper, pillarbox_probe, pillarbox_slot,
    pillarbox_schema;
"""


def build_portable(migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    """Return the migrations of the portable tables, version by version."""
    return tuple(_build(migration) for migration in migrations)


def _build(migration: Migration) -> Migration:
    up = "" if migration.name in _NATIVE_MIGRATIONS else _strip(migration.up)
    down = _strip(migration.down) if migration.version >= FIRST_DECLARED else ""
    if migration.version == 1:
        up, down = up + _SLOTS, _DROP_ALL
    return msgspec.structs.replace(
        migration, up=up, down=down, declared=msgspec.structs.replace(migration.declared, in_transaction=True)
    )


def _strip(script: str) -> str:
    kept = [_strip_statement(text) for text in split_script(script) if not _NATIVE.match(text)]
    return "".join(f"{text};\n" for text in kept)


def _strip_statement(text: str) -> str:
    for column in _COLUMNS:
        text = column.sub("", text)
    text = _STORAGE.sub(")", _CACHE.sub("", text))
    return re.sub(r"\b(index) concurrently\b", r"\1", text, flags=re.IGNORECASE)
