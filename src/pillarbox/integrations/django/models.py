"""Models that show messages, and a base for models that raise domain events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import models, router, transaction

from pillarbox.domain_events import Aggregate, RaisedEvent, discard_events, get_raised_events
from pillarbox.integrations.django import conf
from pillarbox.integrations.django.outbox import publish
from pillarbox.message import Kind, State, Waits
from pillarbox.message import Message as StoredMessage
from pillarbox.stores.sync_sql.rows import parse_uuid_or_none, to_microseconds, to_time
from pillarbox.stores.unreadable import NO_ID, clean_text

_DERIVED: Final = frozenset({"payload_kept", "raw", "unreadable"})
"""Fields of a message that no column holds."""

_FIRST_DAY: Final = "0001-01-02 00:00:00+00"
_LAST_DAY: Final = "9999-12-31 00:00:00+00"

__all__ = ["AggregateModel", "Failure", "JournalLine", "Message", "MessageIdField", "TimeField"]


class TimeField(models.DateTimeField):
    """Time that is a timestamp on PostgreSQL, and whole microseconds since 1970 on other stores. Always with a zone."""

    def get_internal_type(self) -> str:
        # Not that of a time: the backend would try to parse the number as a text.
        return "BigIntegerField"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Select null for a time that no `datetime` can hold, as infinity: psycopg would fail for the whole page."""
        if compiler.connection.vendor != "postgresql" or params:
            return sql, params
        return f"case when {sql} >= '{_FIRST_DAY}' and {sql} < '{_LAST_DAY}' then {sql} end", params

    def from_db_value(self, value: Any, _expression: object, connection: Any) -> datetime | None:
        if value is None or not isinstance(value, datetime):
            return None if value is None else to_time(value)
        stored: datetime = value
        return stored if stored.tzinfo is not None else stored.replace(tzinfo=ZoneInfo(connection.timezone_name))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        at = value if prepared else self.get_prep_value(value)
        return to_microseconds(at) if isinstance(at, datetime) and connection.vendor != "postgresql" else at


class MessageIdField(models.UUIDField):
    """UUID that is PostgreSQL's own type, and text with dashes on other stores."""

    def from_db_value(self, value: Any, _expression: object, _connection: object) -> UUID | None:
        return value if value is None or isinstance(value, UUID) else parse_uuid_or_none(value) or NO_ID

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002 - Django's
        uuid = self.to_python(value)
        return uuid if uuid is None or connection.vendor == "postgresql" else str(uuid)


class HeadersField(models.JSONField):
    """Headers as the row has them: what is no JSON is shown as text."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        try:
            return super().from_db_value(value, expression, connection)
        except (TypeError, ValueError, RecursionError):
            return clean_text(value)


class ReadOnlyModel(models.Model):
    """Model whose rows Django shows and never writes."""

    class Meta:
        abstract = True

    def save(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Messages are not written by Django's models: publish, redrive or discard them instead.")

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Messages are not deleted by Django's models: discard them, and their retention does the rest.")

    def _save_table(self, *_: Any, **__: Any) -> bool:
        # `loaddata` calls this. Rows that `dumpdata` took from the view cannot be written back: skip them.
        return True


class Message(ReadOnlyModel):
    """A message with its state, open or closed, from the view of all messages."""

    id = models.BigIntegerField(primary_key=True)
    message_id = MessageIdField()
    destination = models.TextField()
    partition = models.SmallIntegerField()
    kind = models.TextField()
    type = models.TextField()
    topic = models.TextField()
    key = models.TextField(null=True)
    payload = models.BinaryField(null=True)
    content_type = models.TextField()
    headers: Any = HeadersField(null=True)
    source = models.TextField()
    subject = models.TextField(null=True)
    correlation_id = models.TextField()
    causation_id = models.TextField(null=True)
    event_time = TimeField()
    created_at = TimeField()
    available_at = TimeField(null=True)
    waits = models.TextField(null=True)
    attempts = models.IntegerField()
    last_error = models.TextField(null=True)
    status_at = TimeField()
    state = models.TextField(choices=[(state.value, state.value) for state in State])

    class Meta:
        app_label = "pillarbox"
        managed = False
        db_table = conf.get_table("messages")
        default_permissions: ClassVar = ("view",)
        permissions: ClassVar = [
            ("change_message", "Can redrive and discard messages"),
            ("view_payload", "Can see the payload of messages"),
        ]

    def __str__(self) -> str:
        return f"{self.id}: {self.type} to {self.destination}"

    def to_message(self) -> StoredMessage:
        """Convert the row to the `Message` of the other parts of Pillarbox."""
        values = {name: getattr(self, name) for name in StoredMessage.__struct_fields__ if name not in _DERIVED}
        return StoredMessage(
            **values
            | {
                "kind": Kind(self.kind),
                "payload": bytes(self.payload or b""),
                "headers": self.headers or {},
                "waits": None if self.waits is None else Waits(self.waits),
                "state": State(self.state),
            },
            payload_kept=self.payload is not None,
        )


class _FailedManager(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(state=State.FAILED.value)


class Failure(Message):
    """A message that failed, or is held: a dead letter."""

    objects = _FailedManager()

    class Meta:
        app_label = "pillarbox"
        proxy = True
        default_permissions = ()


class JournalLine(ReadOnlyModel):
    """One line of the journal: a failed attempt, the action of a person, or a change that a relay noticed."""

    id = models.BigIntegerField(primary_key=True)
    message_id = MessageIdField(null=True)
    destination = models.TextField()
    action = models.TextField()
    at = TimeField()
    by = models.TextField()
    attempt = models.IntegerField(null=True)
    error = models.TextField(null=True)
    detail = models.TextField(null=True)
    reason = models.TextField(null=True)
    selection = models.TextField(null=True)

    class Meta:
        app_label = "pillarbox"
        managed = False
        db_table = conf.get_table("journal")
        default_permissions = ()


class AggregateModel(Aggregate, models.Model):
    """Model whose `save` and `delete` publish the events raised on it, in one transaction with the row.

    An event that is raised as a function is built after saving, when the primary key is known. When saving fails, the
    events stay on the model. What bypasses `save`, such as `QuerySet.update` and `bulk_create`, publishes nothing.
    """

    class Meta:
        abstract = True

    def save(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            super().save(*args, using=using, **kwargs)
            published = self._publish_raised(using=using)
        discard_events(self, published)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> Any:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            # Built before the row is deleted, while the model still has its key.
            before = [(raised, raised.build()) for raised in get_raised_events(self)]
            result = super().delete(using=using, keep_parents=keep_parents)
            published = self._publish_raised(before, using=using)
        discard_events(self, published)
        return result

    def _publish_raised(self, built: Sequence[tuple[RaisedEvent, object]] = (), *, using: str) -> list[RaisedEvent]:
        """Publish the events that are built already, then all that wait, then those raised meanwhile. Return them."""
        done: dict[int, RaisedEvent] = {}
        while built or (built := [(one, one.build()) for one in get_raised_events(self) if one.number not in done]):
            for raised, event in built:
                publish(event, using=using, **raised.options)
                done[raised.number] = raised
            built = ()
        return list(done.values())
