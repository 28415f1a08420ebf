"""Migration operation that runs the store's own scripts."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from pillarbox.integrations.django import conf
from pillarbox.stores.migrations import build_statements

__all__ = ["ChangeTables"]


class ChangeTables(Operation):
    """Takes the tables from one version to another, and back. `sqlmigrate` prints the statements."""

    reversible = True
    reduces_to_sql = True

    def __init__(self, *, since: int, to: int) -> None:
        self.since = since
        self.to = to

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: no model belongs to the tables."""

    def database_forwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        self._migrate(app_label, schema_editor, since=self.since, to=self.to)

    def database_backwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        self._migrate(app_label, schema_editor, since=self.to, to=self.since)

    def describe(self) -> str:
        return f"Takes the Pillarbox tables from version {self.since} to {self.to}"

    def _migrate(self, app_label: str, schema_editor: Any, *, since: int, to: int) -> None:
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        names = conf.get_names()
        if names.schema is not None and since == 0:
            schema = connection.ops.quote_name(names.schema)
            schema_editor.execute(f"create schema if not exists {schema}", params=None)
        for statement in build_statements(connection.vendor, names=names, since=since, to=to):
            schema_editor.execute(statement, params=None)
