"""What the page of Alembic shows can be copied: it makes the tables of this release."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic.migration import MigrationContext
from alembic.operations import Operations

from pillarbox.stores.migrations import load_migrations
from tests.support.cli.program import pillarbox

PAGE = (Path(__file__).parents[2] / "docs" / "alembic.md").read_text("utf-8")
LATEST = len(load_migrations("sqlite"))


def test_every_version_on_the_page_is_that_of_this_release() -> None:
    named = re.findall(r"op\.(\w+)_pillarbox_tables\(([^)]*)\)", PAGE)
    values = {
        "create": {f"{LATEST}"},
        "drop": {f"{LATEST}"},
        "upgrade": {f"to={LATEST}", f"to={LATEST}, since={LATEST - 1}"},
        "downgrade": {f"to={LATEST - 1}"},
    }
    assert len(named) >= 7
    assert [(name, given) for name, given in named if given not in values[name]] == []
    assert f"tables of version {LATEST}" in PAGE


def test_the_migration_on_the_page_makes_tables_that_a_relay_runs_on(tmp_path: Path) -> None:
    (script,) = re.findall(
        r"^```python\n(import pillarbox\.integrations\.alembic .*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db")
    migration: dict[str, Any] = {}
    store = ("--store", "sqlite:///shop.db")
    for step, code in (("upgrade", 0), ("downgrade", 4)):
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            if not migration:
                exec(script, migration)  # noqa: S102 - the page is ours
            migration[step]()
        assert pillarbox("schema", "verify", *store, cwd=tmp_path).code == code
    engine.dispose()
