"""The messages and their journal as Django models, to be read. What changes them are the store's own operations."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import models

from pillarbox.integrations.django import conf
from pillarbox.integrations.django.fields import MessageIdField, TimeField
from pillarbox.message import Kind, State, Waits
from pillarbox.message import Message as StoredMessage

__all__ = ["Failure", "JournalLine", "Message"]


class ReadOnly(models.Model):
    """Rows that Django shows and never writes."""

    class Meta:
        abstract = True

    def save(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Messages are not written by Django's models: publish, redrive or discard them instead.")

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Messages are not deleted by Django's models: discard them, and their retention does the rest.")

    def _save_table(self, *_: Any, **__: Any) -> bool:
        """Here `loaddata` arrives: what `dumpdata` took from the view cannot be put back, so it is passed by."""
        return True


class Message(ReadOnly):
    """A message with its state, from the view over all of them: open and closed."""

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
    headers = models.JSONField(null=True)
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
        db_table = conf.table("messages")
        default_permissions: ClassVar = ("view",)
        permissions: ClassVar = [
            ("change_message", "Can redrive and discard messages"),
            ("view_payload", "Can see the payload of messages"),
        ]

    def __str__(self) -> str:
        return f"{self.id}: {self.type} to {self.destination}"

    def stored(self) -> StoredMessage:
        """The same as every other part of Pillarbox knows it."""
        values = {name: getattr(self, name) for name in StoredMessage.__struct_fields__ if name != "payload_kept"}
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


class _Failed(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(state=State.FAILED.value)


class Failure(Message):
    """A message that failed, or is held: the dead letters."""

    objects = _Failed()

    class Meta:
        app_label = "pillarbox"
        proxy = True
        default_permissions = ()


class JournalLine(ReadOnly):
    """One line of the journal: a failed attempt, or what a person did."""

    id = models.BigIntegerField(primary_key=True)
    message_id = MessageIdField(null=True)
    destination = models.TextField()
    action = models.TextField()
    at = TimeField()
    by = models.TextField()
    attempt = models.IntegerField(null=True)
    error = models.TextField(null=True)
    detail = models.TextField(null=True)

    class Meta:
        app_label = "pillarbox"
        managed = False
        db_table = conf.table("journal")
        default_permissions = ()
