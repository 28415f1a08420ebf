"""A schema version that no release has: what an upgrade and a downgrade are proved with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pillarbox.stores
from pillarbox.stores.compatibility import Declaration
from pillarbox.stores.migrations import Migration, read_migrations

__all__ = ["COMPATIBLE", "build_release", "with_next"]

_UP = """
-- A column and an index that the next version might have.
alter table pillarbox_outbox add column priority integer not null default 7;
create index pillarbox_outbox_priority_idx on pillarbox_outbox (priority, id);
"""
_DOWN = """
drop index pillarbox_outbox_priority_idx;
alter table pillarbox_outbox drop column priority;
"""


def with_next(store: str, folder: Path, *, up: str = _UP, down: str = _DOWN) -> Sequence[Migration]:
    """The store's own versions and a made-up next one, as files in the folder."""
    shipped = Path(pillarbox.stores.__path__[0]) / store / "migrations"
    for file in shipped.glob("*.sql"):
        shutil.copy(file, folder)
    number = len(read_migrations(shipped)) + 1
    (folder / f"{number:04}_priority.up.sql").write_text(up)
    (folder / f"{number:04}_priority.down.sql").write_text(down)
    return read_migrations(folder)


COMPATIBLE = """-- readable from: {before}
-- writable from: {before}
-- runs on: {before}
"""
"""Header of a next version that the release before may use, and whose release may use the tables before."""


def build_release(version: int, *, runs_on: int | None = None) -> Migration:
    """The last migration of a release that was made for that version."""
    return Migration(version, "made_up", "", "", Declaration(runs_on=runs_on))
