"""Alembic operations that create and change our tables, and autogenerate support that writes them.

Import it in `env.py`, or in the migration that uses it:

    import pillarbox.integrations.alembic

    def upgrade():
        op.create_pillarbox_tables(2)

    def downgrade():
        op.drop_pillarbox_tables(2)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import MigrateOperation, Operations
from alembic.operations.ops import UpgradeOps
from alembic.util import DispatchPriority, PriorityDispatchResult
from sqlalchemy import Connection, MetaData, text

from pillarbox.integrations.sqlalchemy import escape_colons, find_quote, list_included, read_version, to_scheme
from pillarbox.message import Names
from pillarbox.stores.migrations import build_statements, check_version, latest_version

__all__ = ["ChangeTables"]


class ChangeTables(MigrateOperation):
    """Change of the tables from one version to another; 0 is none."""

    def __init__(self, names: Names, *, since: int, to: int) -> None:
        self.names = names
        self.since = since
        self.to = to

    def reverse(self) -> Self:
        return type(self)(self.names, since=self.to, to=self.since)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what `alembic check` prints."""
        return ("change_pillarbox_tables", self.names.schema, self.names.prefix, self.since, self.to)

    # --- `op.…`: Alembic passes its `Operations` as the first argument ---

    @classmethod
    def create(
        cls, operations: Operations, version: int, *, schema: str | None = None, prefix: str = "pillarbox_"
    ) -> None:
        """Create the tables of that version."""
        operations.invoke(cls(Names(schema, prefix), since=0, to=version))

    @classmethod
    def upgrade(
        cls,
        operations: Operations,
        *,
        to: int,
        since: int | None = None,
        schema: str | None = None,
        prefix: str = "pillarbox_",
    ) -> None:
        """Upgrade the tables to a newer version, by default from the one before it."""
        operations.invoke(cls(Names(schema, prefix), since=to - 1 if since is None else since, to=to))

    @classmethod
    def downgrade(
        cls,
        operations: Operations,
        *,
        to: int,
        since: int | None = None,
        schema: str | None = None,
        prefix: str = "pillarbox_",
    ) -> None:
        """Downgrade the tables to an older version, by default from the one after it. Data is kept where possible."""
        operations.invoke(cls(Names(schema, prefix), since=to + 1 if since is None else since, to=to))

    @classmethod
    def drop(
        cls, operations: Operations, version: int, *, schema: str | None = None, prefix: str = "pillarbox_"
    ) -> None:
        """Drop the tables, which have that version, with all messages in them."""
        operations.invoke(cls(Names(schema, prefix), since=version, to=0))


for _name, _method in (
    ("create_pillarbox_tables", "create"),
    ("upgrade_pillarbox_tables", "upgrade"),
    ("downgrade_pillarbox_tables", "downgrade"),
    ("drop_pillarbox_tables", "drop"),
):
    Operations.register_operation(_name, _method)(ChangeTables)


@Operations.implementation_for(ChangeTables)
def _change(operations: Operations, change: ChangeTables) -> None:
    dialect = operations.get_context().dialect
    if change.names.schema is not None and change.since == 0:
        quote = find_quote(dialect)
        operations.execute(text(f"create schema if not exists {quote}{change.names.schema}{quote}"))
    for statement in build_statements(to_scheme(dialect), names=change.names, since=change.since, to=change.to):
        operations.execute(text(escape_colons(statement)))


@renderers.dispatch_for(ChangeTables)
def _render(context: AutogenContext, change: ChangeTables) -> str:
    context.imports.add("import pillarbox.integrations.alembic")
    names = "".join(
        f", {name}={value!r}"
        for name, value, default in (
            ("schema", change.names.schema, None),
            ("prefix", change.names.prefix, "pillarbox_"),
        )
        if value != default
    )
    if change.since == 0:
        return f"op.create_pillarbox_tables({change.to}{names})"
    if change.to == 0:
        return f"op.drop_pillarbox_tables({change.since}{names})"
    direction = "upgrade" if change.to > change.since else "downgrade"
    return f"op.{direction}_pillarbox_tables(to={change.to}, since={change.since}{names})"


@comparators.dispatch_for("schema", priority=DispatchPriority.FIRST)
def _compare(context: AutogenContext, upgrade_ops: UpgradeOps, _schemas: object) -> PriorityDispatchResult:
    """Compare before Alembic does: it would drop our tables, because no `Table` declares them."""
    wanted = [names for metadata in _list_metadata(context) for names in list_included(metadata)]
    default = context.dialect.default_schema_name
    context._name_filters.append(lambda name, kind, parents: not _is_own_table(name, kind, parents, wanted, default))
    if context.connection is not None:
        upgrade_ops.ops += [change for names in wanted for change in _find_changes(context.connection, names)]
    return PriorityDispatchResult.CONTINUE


def _find_changes(connection: Connection, names: Names) -> Iterator[ChangeTables]:
    current, wanted = read_version(connection, names), latest_version(to_scheme(connection.dialect))
    if current > wanted:
        check_version(current, latest=wanted)
    if current < wanted:
        yield ChangeTables(names, since=current, to=wanted)


def _list_metadata(context: AutogenContext) -> Iterable[MetaData]:
    metadata = context.metadata
    if metadata is None:
        return ()
    return (metadata,) if isinstance(metadata, MetaData) else metadata


def _is_own_table(
    name: str | None, kind: str, parents: Mapping[str, Any], wanted: Iterable[Names], default: str | None
) -> bool:
    # Alembic leaves out the name of the default schema; `include_tables` may have been given it.
    if kind != "table" or name is None:
        return False
    schema = parents.get("schema_name") or default
    return any(schema == (names.schema or default) and names.is_ours(name) for names in wanted)
