"""Messages in the states that a relay would bring them to."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction

from pillarbox.integrations.django import publish
from pillarbox.integrations.django.models import JournalLine, Message
from tests.integration.django_project.shop.models import Told

_COLUMNS = (
    "id", "message_id", "destination", "partition", "kind", "type", "topic", "key", "payload", "content_type",
    "headers", "source", "subject", "correlation_id", "causation_id", "event_time", "created_at", "attempts",
    "status_at",
)  # fmt: skip


def written(word: str, *, using: str, **options: Any) -> Any:
    """A pending message whose subject is the word."""
    with transaction.atomic(using=using):
        message_id = publish(Told(1, word), using=using, **options)
    return Message.objects.using(using).get(message_id=message_id)


def closed(word: str, *, using: str, status: str = "failed", error: str = "refused", **options: Any) -> Any:
    """A message that a relay has closed, with a line in the journal."""
    pending = written(word, using=using, **options)
    connection = connections[using]
    names = ", ".join(connection.ops.quote_name(name) for name in _COLUMNS)
    by = connection.ops.quote_name("by")
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute(
            f"insert into pillarbox_history ({names}, last_error, status) "
            f"select {names}, %s, %s from pillarbox_outbox where id = %s",
            [error, status, pending.id],
        )
        cursor.execute("delete from pillarbox_outbox where id = %s", [pending.id])
        cursor.execute(
            f"insert into pillarbox_journal (message_id, destination, action, at, {by}, attempt, error, detail) "
            f"select message_id, destination, %s, status_at, %s, 1, %s, %s from pillarbox_history where id = %s",
            ["failed", "relay-1", error, "Traceback of it", pending.id],
        )
    return Message.objects.using(using).get(id=pending.id)


def state_of(message: Any) -> str:
    """As the database has it now."""
    return str(Message.objects.using(message._state.db).get(id=message.id).state)


def journal_of(message: Any) -> list[tuple[str, str, str | None]]:
    """What was done with it, by whom, and why."""
    lines = JournalLine.objects.using(message._state.db).filter(message_id=message.message_id).order_by("id")
    return [(line.action, line.by, line.reason or line.error) for line in lines]
