"""Models that raise domain events."""

from __future__ import annotations

from typing import Any

from django.db import models, router, transaction

from pillarbox.aggregates import Aggregate, Raised, forget, raised_by
from pillarbox.integrations.django.publishing import publish

__all__ = ["AggregateModel"]


class AggregateModel(Aggregate, models.Model):
    """A model whose `save` and `delete` publish what was raised on it, in one transaction with the row.

    An event that is raised by a function knows the primary key that saving made. What bypasses `save`, such as
    `QuerySet.update` and `bulk_create`, publishes nothing.
    """

    class Meta:
        abstract = True

    def save(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            super().save(*args, using=using, **kwargs)
            while events := self._made():
                self._publish(events, using=using)

    def delete(self, *args: Any, using: str | None = None, **kwargs: Any) -> Any:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            events = self._made()  # while it still has its key
            result = super().delete(*args, using=using, **kwargs)
            self._publish(events, using=using)
        return result

    def _made(self) -> list[tuple[Raised, object]]:
        return [(raised, raised.made()) for raised in raised_by(self)]

    def _publish(self, events: list[tuple[Raised, object]], *, using: str) -> None:
        for raised, event in events:
            publish(event, using=using, **raised.options)
        forget(self, [raised for raised, _ in events])
