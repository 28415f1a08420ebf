"""Our tables in a SQLAlchemy `MetaData`: created by `create_all`, and compared by Alembic's autogenerate.

They are no `Table` objects: the store's own scripts create them, and a second description could only be wrong.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, MetaData, event, inspect, text
from sqlalchemy.engine import Dialect

from pillarbox.message import Names
from pillarbox.stores.migrations import build_statements

__all__ = [
    "escape_colons",
    "find_quote",
    "include_tables",
    "list_included",
    "read_version",
    "to_scheme",
]

_KEY: Final = "pillarbox"


def include_tables(metadata: MetaData, *, schema: str | None = None, prefix: str = "pillarbox_") -> None:
    """Have `metadata.create_all` create our tables too, and `drop_all` drop them."""
    names = Names(schema, prefix)
    known = list_included(metadata)
    if names in known:
        return
    metadata.info[_KEY] = [*known, names]

    @event.listens_for(metadata, "after_create")
    def create(_: MetaData, connection: Connection, **__: Any) -> None:
        if not read_version(connection, names):
            _migrate(connection, names, since=0)

    @event.listens_for(metadata, "before_drop")
    def drop(_: MetaData, connection: Connection, **__: Any) -> None:
        if version := read_version(connection, names):
            _migrate(connection, names, since=version, to=0)


def list_included(metadata: MetaData) -> list[Names]:
    """List the names of our tables that were included in this metadata."""
    return list(metadata.info.get(_KEY, ()))


def read_version(connection: Connection, names: Names) -> int:
    """Read the version of the tables; 0 if there are none."""
    if not inspect(connection).has_table(names.bare("schema"), schema=names.schema):
        return 0
    sql = names.qualify("select max(version) from pillarbox_schema", quote=find_quote(connection.dialect))
    return int(connection.execute(text(sql)).scalar() or 0)


def _migrate(connection: Connection, names: Names, *, since: int, to: int | None = None) -> None:
    """Take the tables from one version to another, by default the latest, in the caller's transaction.

    On MySQL each statement commits by itself.
    """
    for statement in build_statements(to_scheme(connection.dialect), names=names, since=since, to=to):
        connection.execute(text(escape_colons(statement)))


def to_scheme(dialect: Dialect) -> str:
    """Return the dialect's scheme in store URLs. SQLAlchemy has two names for MySQL's."""
    return "mysql" if dialect.name == "mariadb" else dialect.name


def find_quote(dialect: Dialect) -> str:
    """Return the character that quotes names in this dialect."""
    return "`" if to_scheme(dialect) == "mysql" else '"'


def escape_colons(statement: str) -> str:
    """Escape colons for `text()`, which takes one before a word for a parameter."""
    return statement.replace(":", r"\:")
