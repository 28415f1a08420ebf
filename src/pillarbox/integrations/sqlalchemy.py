"""The tables beside yours in a SQLAlchemy `MetaData`: made by `create_all`, and found by Alembic's autogenerate.

They are no `Table` objects: a second description of them could only be wrong. The store's own scripts make them.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, MetaData, event, inspect, text
from sqlalchemy.engine import Dialect

from pillarbox.names import Names
from pillarbox.stores.scripts import statements

__all__ = ["escaped", "include_tables", "included", "quote_of", "run", "scheme_of", "version_of"]

_KEY: Final = "pillarbox"


def include_tables(metadata: MetaData, *, schema: str | None = None, prefix: str = "pillarbox_") -> None:
    """Have `metadata.create_all` make the tables, and `drop_all` remove them. See `pillarbox.integrations.alembic`."""
    names = Names(schema, prefix)
    known = included(metadata)
    if names in known:
        return
    metadata.info[_KEY] = [*known, names]

    @event.listens_for(metadata, "after_create")
    def created(_: MetaData, connection: Connection, **__: Any) -> None:
        if not version_of(connection, names):
            run(connection, names, since=0)

    @event.listens_for(metadata, "before_drop")
    def dropped(_: MetaData, connection: Connection, **__: Any) -> None:
        if version := version_of(connection, names):
            run(connection, names, since=version, to=0)


def included(metadata: MetaData) -> list[Names]:
    """Where the tables that belong to this metadata are."""
    return list(metadata.info.get(_KEY, ()))


def version_of(connection: Connection, names: Names) -> int:
    """The version of the tables; 0 when there are none."""
    if not inspect(connection).has_table(names.bare("schema"), schema=names.schema):
        return 0
    asked = names.applied("select max(version) from pillarbox_schema", quote=quote_of(connection.dialect))
    return int(connection.execute(text(asked)).scalar() or 0)


def run(connection: Connection, names: Names, *, since: int, to: int | None = None) -> None:
    """Bring the tables from one version to another, by default the latest, in the caller's transaction.

    MySQL has none for this: it commits after each statement.
    """
    for statement in statements(scheme_of(connection.dialect), names=names, since=since, to=to):
        connection.execute(text(escaped(statement)))


def scheme_of(dialect: Dialect) -> str:
    """What a store URL calls the dialect: SQLAlchemy has two names for MySQL's."""
    return "mysql" if dialect.name == "mariadb" else dialect.name


def quote_of(dialect: Dialect) -> str:
    """What stands around a name in this dialect."""
    return "`" if scheme_of(dialect) == "mysql" else '"'


def escaped(statement: str) -> str:
    """For `text()`, which takes a colon before a word for a parameter."""
    return statement.replace(":", r"\:")
