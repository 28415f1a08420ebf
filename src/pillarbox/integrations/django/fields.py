"""Columns as the stores keep them, for Django's models: each database has its own way with times and ids."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import models

from pillarbox.stores.stepwise.rows import microseconds, time_of

__all__ = ["MessageIdField", "TimeField"]


class TimeField(models.DateTimeField):
    """A time of PostgreSQL's own, or whole microseconds since 1970 where the store keeps those. Always with a zone."""

    def get_internal_type(self) -> str:
        """Not that of a time: the backend would take the number for a text and read it."""
        return "BigIntegerField"

    def from_db_value(self, value: Any, _expression: object, connection: Any) -> datetime | None:
        if value is None or isinstance(value, int):
            return None if value is None else time_of(value)
        stored: datetime = value
        return stored if stored.tzinfo is not None else stored.replace(tzinfo=ZoneInfo(connection.timezone_name))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        at = value if prepared else self.get_prep_value(value)
        return microseconds(at) if isinstance(at, datetime) and connection.vendor != "postgresql" else at


class MessageIdField(models.UUIDField):
    """PostgreSQL's own type, or the usual text with its dashes."""

    def from_db_value(self, value: Any, _expression: object, _connection: object) -> UUID | None:
        return value if value is None or isinstance(value, UUID) else UUID(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002 - Django's
        made = self.to_python(value)
        return made if made is None or connection.vendor == "postgresql" else str(made)
