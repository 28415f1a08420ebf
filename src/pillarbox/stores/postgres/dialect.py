"""Dialects of the PostgreSQL store: its own, and one for servers that speak its language and lack its internals."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pillarbox.message import Names
from pillarbox.stores.postgres.driver import Connection
from pillarbox.stores.sql import Statements

__all__ = ["PostgresDialect", "build_statements", "find_lack"]

PostgresDialect: TypeAlias = Literal["native", "portable"]

_OTHERS: Final = ("CockroachDB", "YugabyteDB", "-YB-", "Redshift", "Materialize")
"""Words in the version of servers that are not PostgreSQL."""
_INSPECT: Final = """
    select version(),
           to_regclass($1) is not null
           and not exists (select from pg_attribute
                            where attrelid = to_regclass($1) and attname = 'tx' and not attisdropped)
"""


def build_statements(names: Names, *, dialect: PostgresDialect) -> Statements:
    """Read the statements of a dialect. The portable one replaces some of the native ones."""
    if dialect == "native":
        return Statements("pillarbox.stores.postgres", names)
    return Statements("pillarbox.stores.postgres.portable", names, shared="pillarbox.stores.postgres")


async def find_lack(connection: Connection, names: Names) -> str | None:
    """Return why the native dialect cannot be used here, as a sentence; None if it can."""
    version, has_portable_tables = await connection.fetchrow(_INSPECT, names.table("outbox"))
    if any(word in version for word in _OTHERS):
        return (
            f"The server is {version.partition(' on ')[0]}, which lacks transaction numbers and snapshots: "
            "add dialect=portable to the options of the store, and to those of `pillarbox schema install`."
        )
    if has_portable_tables:
        return (
            "The tables were installed with dialect=portable, and the store was opened without: add dialect=portable "
            "to its options."
        )
    return None
