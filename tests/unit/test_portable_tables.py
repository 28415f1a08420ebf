"""The tables and grants of the portable dialect."""

from __future__ import annotations

import re

from pillarbox.message import Names
from pillarbox.stores.migrations import load_migrations
from pillarbox.stores.postgres.grants import build_grants, build_portable_grants
from pillarbox.stores.postgres.portable.tables import build_portable

ROLES = {"writer": "w", "relay": "r", "operator": "o", "viewer": "v"}


def test_portable_tables_use_nothing_that_only_postgresql_has() -> None:
    text = "".join(one.up + one.down for one in build_portable(load_migrations("postgresql")))
    native = r"xid8|pg_current|plpgsql|trigger|\$\$|autovacuum|fillfactor|partition by|toast|concurrently|compression"
    assert re.findall(native, text) == []


def test_portable_tables_have_every_version_and_declare_the_same() -> None:
    native = load_migrations("postgresql")
    portable = build_portable(native)
    assert [one.version for one in portable] == [one.version for one in native]
    assert [one.declared.writable_from for one in portable] == [one.declared.writable_from for one in native]


def test_portable_grants_name_no_function_and_no_transaction() -> None:
    text = build_portable_grants(ROLES, names=Names())  # type: ignore[arg-type]
    assert "function" not in text
    assert "(tx," not in text
    assert 'grant select, update on "pillarbox_slot" to "r";' in text
    assert "function" in build_grants(ROLES, names=Names())  # type: ignore[arg-type]
